"""Stage curves: what one launch of each stage takes on this machine, by rows and by context.

They are measured through the engine itself, by the very instrument that times launches in a run:
``meter.py`` makes passes over a grid of cells (``cells.py``), ``floors.py`` measures what the
machine could do at best, ``key.py`` says when a saved document may stand for a new measurement.
"""
