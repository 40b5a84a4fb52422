"""lm-eval's own aggregates as the result keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cdbench.bench.live import LivePass
from cdbench.schema import ScoreRecord, Scores

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.scores import GroupMetric, MetricScore


def scores_of(passes: Mapping[str, LivePass]) -> Scores | None:
    """What lm-eval made of every mode's answers; None without a live pass.

    ``static@auto`` where it is ``static`` has none of its own: it was asked nothing.
    """
    known = {label: p.scores for label, p in passes.items() if p.scores is not None}
    if not known:
        return None
    return Scores(
        tasks={
            label: {name: [_of_task(m) for m in task.metrics] for name, task in s.tasks.items()}
            for label, s in known.items()
        },
        groups={
            label: {name: [_of_group(m) for m in group.metrics] for name, group in s.groups.items()}
            for label, s in known.items()
            if s.groups
        },
        notes=list(dict.fromkeys(note for scores in known.values() for note in scores.notes)),
    )


def _of_task(found: MetricScore) -> ScoreRecord:
    return ScoreRecord(
        metric=found.metric,
        filter=found.filter,
        higher_is_better=found.higher_is_better,
        value=found.aggregate,
        stderr=found.stderr,
        n=len(found.values),
    )


def _of_group(found: GroupMetric) -> ScoreRecord:
    return ScoreRecord(
        metric=found.metric, filter=found.filter, higher_is_better=None, value=found.aggregate
    )
