"""The machine a run is measured on: what it did meanwhile, and whether that spoiled anything.

``monitor`` reads counters before and after each timed repeat (``processor`` those of the CPU,
``gpu`` those of a GPU), ``summary`` puts the repeats together and ``disturbance`` says in words
what they mean. ``unchanged`` notices files that change during a run, ``noise`` times the same work
against itself. ``facts`` are what does not change while a process runs.

Reading never fails a run: what cannot be read is null.
"""
