"""The sweep's document: every cell, its rounds, its verdict and its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdbench.schema import IntervalRecord, Result
from cdbench.schema.sweep import CellRound, SweepCell, SweepDocument
from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.sweep.cells import Cell, Sweep
from cdbench.sweep.directory import SweepDirectory
from cdbench.sweep.execute import Job, estimate
from cdbench.sweep.figures import Figure, columns, value
from cdbench.sweep.likeness import other_models, other_workloads
from cdbench.sweep.stage_figures import stage_columns, stage_value
from cdbench.sweep.sustained import sustained_rates

FEW_BLOCKS = re.compile(r"\d+ blocks? (?:was|were) timed; an interval needs \d+")
"""What a run says of too few blocks: over all rounds there may be enough."""


class Summary:
    """Makes the document of a sweep from what lies in its directory."""

    def __init__(self, sweep: Sweep, directory: SweepDirectory) -> None:
        self.sweep = sweep
        self.directory = directory
        self._figures: tuple[Figure, ...] = ()
        if sweep.verb == "run":
            self._figures = columns(sweep.show, [cell.config for cell in sweep.cells])
            self.columns = tuple(figure.name for figure in self._figures)
        else:
            self.columns = stage_columns(sweep.show)

    def planned(self, waiting: Sequence[Job]) -> SweepDocument:
        """Before anything runs: the cells and how long they will take."""
        return self._document("planned", waiting)

    def so_far(self, waiting: Sequence[Job], interrupted: bool = False) -> SweepDocument:
        """As it stands; ``waiting`` are the jobs of this invocation."""
        document = self._document("partial", waiting)
        states = {r.state for cell in document.cells for r in cell.rounds}
        if interrupted:
            return document.model_copy(update={"status": "interrupted"})
        if states == {"finished"}:
            return document.model_copy(update={"status": "complete"})
        return document

    def _document(self, status: str, waiting: Sequence[Job]) -> SweepDocument:
        sweep = self.sweep
        looked = {
            cell.hash: [self.directory.look(cell, n) for n in range(1, sweep.rounds + 1)]
            for cell in sweep.cells
        }
        results = {cell.hash: self.directory.results(cell, sweep.rounds) for cell in sweep.cells}
        cells = [self._cell(cell, looked[cell.hash], results[cell.hash]) for cell in sweep.cells]
        found = [results[cell.hash] for cell in sweep.cells]
        return SweepDocument(
            name=sweep.name,
            verb=sweep.verb,
            status=status,
            seed=sweep.seed,
            rounds=sweep.rounds,
            base=sweep.base,
            varied=list(sweep.varied),
            columns=list(self.columns),
            cells=cells,
            sustained=[] if status == "planned" else sustained_rates(sweep.cells, cells, found),
            notes=self._notes(found),
            estimate=estimate(
                [j for j in waiting if looked[j.cell.hash][j.round - 1].state != "finished"],
                looked,
            ),
        )

    def _cell(
        self, cell: Cell, rounds: Sequence[CellRound], results: Sequence[Result]
    ) -> SweepCell:
        done = all(r.state == "finished" for r in rounds)
        reasons = pooled_reasons(rounds, results) if done else []
        found = self._values(cell, results)
        return SweepCell(
            number=cell.number,
            hash=cell.hash,
            changes=cell.changes,
            rounds=list(rounds),
            verdict=("INVALID" if reasons else "VALID") if done else None,
            reasons=reasons,
            figures={name: figure for name, figure in found.items() if figure is not None},
        )

    def _values(self, cell: Cell, results: Sequence[Result]) -> dict[str, IntervalRecord | None]:
        if self.sweep.verb == "stages":
            curves = self.directory.curves(cell, self.sweep.rounds)
            return {name: stage_value(name, curves) for name in self.columns}
        return {figure.name: value(figure, results) for figure in self._figures}

    def _notes(self, found: Sequence[Sequence[Result]]) -> list[str]:
        results = [result for each in found for result in each]
        configs = [
            cell.config for cell, each in zip(self.sweep.cells, found, strict=True) for _ in each
        ]
        notes = [*self.sweep.notes, *marks(results), *mixed_code(results)]
        notes += [*other_models(configs, results), *other_workloads(configs, results)]
        strangers = self.directory.strangers(self.sweep.cells)
        if strangers:
            notes.append(f"{strangers} cells in this directory are no longer part of the sweep")
        return notes


def pooled_reasons(rounds: Sequence[CellRound], results: Sequence[Result]) -> list[str]:
    """Why a cell must not be used: every round's reasons, but too few blocks only if they are.

    The rounds' blocks count together: each has its own interleaved block of every mode.
    """
    several = len(rounds) > 1
    reasons = [
        f"round {r.round}: {reason}" if several else reason
        for r in rounds
        for reason in r.reasons
        if not (several and FEW_BLOCKS.fullmatch(reason))
    ]
    timed = [result for result in results if result.blocks]
    blocks = sum(len({block.index for block in result.blocks}) for result in timed)
    if several and timed and blocks < MIN_BLOCKS:
        reasons.append(
            f"{blocks} blocks were timed over {len(rounds)} rounds; an interval needs {MIN_BLOCKS}"
        )
    return reasons


def marks(results: Sequence[Result]) -> list[str]:
    """What must be said of the cells' models and work: each note once."""
    notes: list[str] = []
    for result in results:
        if result.model is None:
            continue
        if result.model.random_weights_seed is not None:
            notes.append("RANDOM WEIGHTS: timings only; the text means nothing")
        notes += result.model.notes
    return list(dict.fromkeys(notes))


def mixed_code(results: Sequence[Result]) -> list[str]:
    """A note where the cells were not all measured by the same code on the same machine."""
    code = {
        (m.cdbench_version, m.git.commit if m.git else None, m.packages.get("torch"))
        for m in (result.manifest for result in results)
    }
    machines = {
        (m.cpu.model, m.device.name, m.torch_threads)
        for m in (result.manifest for result in results)
    }
    notes = []
    if len(code) > 1:
        notes.append(
            f"cells were measured by {len(code)} versions of the code: do not compare them"
        )
    if len(machines) > 1:
        notes.append(f"cells were measured on {len(machines)} machines: compare none of them")
    return notes
