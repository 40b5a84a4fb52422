"""One run per cell of a grid: which cells there are, what is finished, and what came out.

``file`` reads a sweep file, ``changes`` says what each cell changes and ``cells`` makes them,
``preflight`` checks each as its run would, ``directory`` knows what of them is on disk, ``execute``
runs the rest, ``figures`` reads numbers out of the cells' results, ``summary`` puts them together.
A cell is one run as ``cdbench run`` makes it, in its own directory.
"""
