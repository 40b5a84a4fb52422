"""lm-eval's own aggregates as the result keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from cdbench.bench.live import LivePass
from cdbench.schema import ScoreRecord, Scores


def scores_of(passes: Mapping[str, LivePass]) -> Scores | None:
    """What lm-eval made of every mode's answers; None without a live pass.

    ``static@auto`` where it is ``static`` has none of its own: it was asked nothing.
    """
    known = {label: p.scores for label, p in passes.items() if p.scores is not None}
    if not known:
        return None
    return Scores(
        tasks={
            label: {
                name: [
                    ScoreRecord(
                        metric=found.metric,
                        filter=found.filter,
                        higher_is_better=found.higher_is_better,
                        value=found.aggregate,
                        stderr=found.stderr,
                        n=len(found.values),
                    )
                    for found in task.metrics
                ]
                for name, task in scores.tasks.items()
            }
            for label, scores in known.items()
        },
        groups={
            label: {
                name: [
                    ScoreRecord(
                        metric=found.metric,
                        filter=found.filter,
                        higher_is_better=None,
                        value=found.aggregate,
                    )
                    for found in group.metrics
                ]
                for name, group in scores.groups.items()
            }
            for label, scores in known.items()
            if scores.groups
        },
        notes=list(dict.fromkeys(note for scores in known.values() for note in scores.notes)),
    )
