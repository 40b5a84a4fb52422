"""Exit depths of tasks, compared: for one mode of one run, from its request records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cdbench.metrics.trace import RequestTrace
from cdbench.schema import IntervalRecord
from cdbench.schema.exits import ExitDistributions, TaskDepths, TaskDifference
from cdbench.stats.distributions import compare_tasks, mean_depth

SEED = 0


def exit_distributions(
    requests: Iterable[RequestTrace], max_loops: int, where: str
) -> ExitDistributions | None:
    """Mean depth of each task and how unlike they are; None without a task that exits.

    ``requests`` are those of one run: a repeat of the same request brings no new depth. Later
    tokens only, executed depths.
    """
    by_task: dict[str, list[list[int]]] = defaultdict(list)
    for request in requests:
        if request.task is not None and len(request.executed_depths) > 1:
            by_task[request.task].append(list(request.executed_depths[1:]))
    if not by_task:
        return None
    tasks = {task: by_task[task] for task in sorted(by_task)}
    return ExitDistributions(
        where=where,
        tasks=[_task(task, depths, max_loops) for task, depths in tasks.items()],
        differences=[
            TaskDifference(
                first=pair.first,
                second=pair.second,
                difference=IntervalRecord.of(pair.difference),
                distance=pair.distance,
                by_chance=pair.by_chance,
                p_value=pair.p_value,
                adjusted_p=pair.adjusted_p,
            )
            for pair in compare_tasks(tasks, seed=SEED)
        ],
    )


def _task(task: str, requests: list[list[int]], max_loops: int) -> TaskDepths:
    found = mean_depth(requests, seed=SEED)
    assert found is not None, "every request kept has a later token"
    histogram = [0] * max_loops
    for depth in (d for request in requests for d in request):
        histogram[depth - 1] += 1
    return TaskDepths(
        task=task,
        requests=len(requests),
        tokens=sum(map(len, requests)),
        mean_depth=IntervalRecord.of(found),
        histogram=histogram,
    )
