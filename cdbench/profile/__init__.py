"""Which ``max_loops`` and threshold serve a latency target best, and what a larger R costs.

``grid`` makes the sweep, ``served`` reads how the requests of a cell fared, ``tail`` whose the
slowest ones are, ``exits`` compares the tasks' exit depths, ``recommend`` decides, ``session`` puts
it together. Targets are judged from the raw records: another target needs no new run.
"""
