"""A profile: the sweep behind it, run as far as it is not yet, then read and judged."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.exits import exit_distributions
from cdbench.errors import UsageError
from cdbench.profile.accuracy import with_accuracy
from cdbench.profile.cells import Measured, measured_cell, sustained
from cdbench.profile.recommend import recommend
from cdbench.profile.served import goodput, has_target, slo_of
from cdbench.schema.exits import ExitDistributions
from cdbench.schema.files import write_document
from cdbench.schema.profile import (
    PROFILE_FILE,
    AccuracyPoint,
    ProfileDocument,
    SloRecord,
)
from cdbench.schema.sweep import SweepDocument
from cdbench.sweep.cells import Sweep
from cdbench.sweep.directory import SweepDirectory
from cdbench.workloads.arrivals import parse_arrivals


def check(sweep: Sweep, mode: str, slo: SloRecord) -> None:
    """Raise UsageError where the cells cannot show what is asked of them."""
    for cell in sweep.cells:
        if mode not in {str(m) for m in cell.config.resolved_modes}:
            raise UsageError(f"profile: mode {mode!r} is not among the modes; add it to modes")
        if "equal" not in cell.config.work:
            raise UsageError("profile: latencies are of timed work; add equal to work")
        arrivals = parse_arrivals(cell.config.workload.arrivals)
        if slo.ttft_s is not None and str(arrivals) == "all-at-once":
            raise UsageError(
                "--slo-ttft: under all-at-once arrivals a time to first token is only queueing; "
                "add --rates"
            )


def profile_document(
    sweep: Sweep,
    directory: SweepDirectory,
    swept: SweepDocument,
    mode: str,
    slo: SloRecord,
    answers: Sequence[AccuracyPoint] = (),
) -> ProfileDocument:
    """What the finished cells show. It runs nothing: other targets can be asked of the same runs.

    ``answers`` are the accuracies of the operating points, where they were asked.

    A cell whose records cannot be read is noted, and counts as one that has not run.
    """
    cells = [
        measured_cell(directory, cell, seen, mode, slo)
        for cell, seen in zip(sweep.cells, swept.cells, strict=True)
    ]
    records = [with_accuracy(found.record, answers, mode) for found in cells]
    goodputs = {}
    if has_target(slo):
        goodputs = {
            found.record.number: goodput(found.served, slo_of(slo))
            for found in cells
            if found.served is not None
        }
    chosen = recommend(records, goodputs, slo)
    return ProfileDocument(
        status=swept.status,
        mode=mode,
        slo=slo,
        varied=swept.varied,
        cells=records,
        recommendation=chosen,
        sustained=sustained(cells, slo),
        exits=_exits(cells, chosen.cell, mode),
        answers=list(answers),
        notes=[*swept.notes, *_unreadable(cells)],
    )


def _unreadable(cells: Sequence[Measured]) -> list[str]:
    return [
        f"cell {found.record.number}: {found.unreadable}; move {found.cell.hash} away and it runs "
        "again"
        for found in cells
        if found.unreadable is not None
    ]


def write_profile(directory: SweepDirectory, document: ProfileDocument) -> None:
    """Write ``profile.json`` whole, beside ``sweep.json``."""
    write_document(directory.path / PROFILE_FILE, document)


def _exits(cells: Sequence[Measured], chosen: int | None, mode: str) -> ExitDistributions | None:
    """The tasks' exit depths at the recommended cell, else at the first in which tokens exit."""
    known = [found for found in cells if found.served is not None and found.served.runs]
    if not known:
        return None
    early = [f for f in known if (f.record.mean_depth or 0) < (f.record.max_loops or 0)]
    found = next((f for f in known if f.record.number == chosen), (early or known)[0])
    assert found.served is not None
    assert found.record.max_loops is not None
    return exit_distributions(
        found.served.one_run,
        found.record.max_loops,
        f"{mode}, cell {found.record.number} ({found.cell.words})",
    )
