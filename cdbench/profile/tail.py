"""The tail of a cell: how far the slowest requests lie from the median, and whose they are.

A larger R helps only the tokens that use it, and they are the slow ones: a task that runs to full
depth makes the tail, while the median hardly moves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from cdbench.profile.served import Served, mean_tpot_s
from cdbench.schema import ModeResult, RequestRecord
from cdbench.schema.profile import TailRecord

TAIL_PERCENTILES = (99, 95, 90)
SLOW_SHARE = 0.10


def tail(cell: Served, mode: ModeResult) -> TailRecord:
    """What the slowest requests of a cell cost, and which task they belong to."""
    q = next((q for q in TAIL_PERCENTILES if _at(mode, "tpot", q) is not None), None)
    requests, loops = cell.one_run, mode.max_loops
    task = full_depth_task(requests, loops)
    own = [r for r in requests if r.task == task] if task is not None else []
    return TailRecord(
        percentile=q,
        tpot_ratio=_ratio(mode, "tpot", q),
        e2e_ratio=_ratio(mode, "e2e", q),
        full_depth_share=full_depth_share(requests, loops),
        task=task,
        task_full_depth_share=full_depth_share(own, loops),
        task_request_share=len(own) / len(requests) if own else None,
        task_slow_share=_slow_share({r.id for r in own}, mean_tpot_s(cell)) if own else None,
    )


def full_depth_share(requests: Iterable[RequestRecord], loops: int) -> float | None:
    """Later tokens at depth R / later tokens; None without a later token."""
    depths = [depth for r in requests for depth in r.executed_depths[1:]]
    return sum(depth == loops for depth in depths) / len(depths) if depths else None


def full_depth_task(requests: Sequence[RequestRecord], loops: int) -> str | None:
    """The task with the largest share of its later tokens at full depth.

    None where no task stands out: there is one only, or all have the same share.
    """
    by_task: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in requests:
        if record.task is not None:
            by_task[record.task].append(record)
    shares = {task: full_depth_share(own, loops) or 0.0 for task, own in sorted(by_task.items())}
    if len(set(shares.values())) < 2:
        return None
    return max(shares, key=lambda task: shares[task])


def _slow_share(own: set[str], tpot_s: dict[str, float]) -> float | None:
    """The task's part in the slowest tenth of the requests (at least one)."""
    if not tpot_s:
        return None
    count = max(1, math.floor(SLOW_SHARE * len(tpot_s)))
    slowest = sorted(tpot_s, key=lambda name: tpot_s[name], reverse=True)[:count]
    return sum(name in own for name in slowest) / count


def _ratio(mode: ModeResult, metric: str, q: int | None) -> float | None:
    high = None if q is None else _at(mode, metric, q)
    median = _at(mode, metric, 50)
    return high / median if high is not None and median else None


def _at(mode: ModeResult, metric: str, q: int) -> float | None:
    return mode.percentiles.get(metric, {}).get(f"p{q}")
