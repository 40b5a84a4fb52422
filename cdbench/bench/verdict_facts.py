"""What a verdict depends on, alike of a run that has just ended and of one read back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cdbench.bench.equal_check import unequal_work
from cdbench.bench.repeats import Answers, Repeat, complete_blocks
from cdbench.bench.validity import TimedFacts
from cdbench.metrics.identities import broken_identities
from cdbench.schema.workload import RecordedWork


def live_errors(passes: Mapping[str, Answers]) -> dict[str, list[str]]:
    """The errors of the requests that each mode's live pass could not serve."""
    return {
        label: [a.error for s in passed.samples for a in s.answers if a.error is not None]
        for label, passed in passes.items()
    }


def timed_facts(
    runs: Sequence[Repeat],
    workload: Sequence[RecordedWork],
    adaptive: Collection[str],
    own_vocabulary: Collection[str],
) -> TimedFacts:
    """The timed part, of torn blocks too; modes as in ``unequal_work``."""
    return TimedFacts(
        blocks=len({run.block for run in complete_blocks(runs)}),
        requests=len(workload),
        unequal=unequal_work(runs, workload, adaptive, own_vocabulary),
        broken_identities=[why for run in runs for why in broken_identities(run.trace)],
    )
