"""The meter: passes over the grid, through engines set up as the run's own.

An engine of its own serves each kind of cell: ``static`` (rule none), ``cdb`` with the run's exit
rule, and one for prompts. The first two keep the prompts of all cells in their prefix caches, so
that a pass after the first decodes almost at once; the launches timed are the same.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cdbench import manifest
from cdbench.bench.plan import Plan
from cdbench.grammar import Mode
from cdbench.runtime.cache_shape import cache_shape
from cdbench.runtime.core import Clock, ExitPolicy, LaunchLog, LaunchRecord, Request, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.schema.stages import StageCurves, StageFloors, StagePassPoint, StagePassRecord
from cdbench.stages.cells import (
    Cell,
    CellKind,
    Company,
    Streams,
    decode_requests,
    prefill_requests,
    read_launches,
)
from cdbench.stages.floors import measure_floors
from cdbench.stages.grid import checked_contexts, chunk_sizes, widths
from cdbench.stages.key import stage_key
from cdbench.stages.points import points_of
from cdbench.workloads.resolve import free_bytes

MEMORY_SHARE = 0.25
"""Of the free memory, for the keys and values of cells: timed engines hold theirs beside them."""


class StageMeter:
    """Measures stage curves for a plan, pass by pass.

    ``contexts`` are the positions that the longest row of a launch attends to, ``width`` the most
    rows (default: the plan's), ``texts`` real text as token ids, from which prompts are cut.
    ``later_contexts`` and ``depths``, of the later tokens of a workload, say what else is in a
    launch (``Company``). Prompts of prefill chunks have ``prompt_tokens`` tokens (default: the
    middle context).

    Raises:
        UsageError: a context does not fit the model, or no context or text was given.
    """

    def __init__(
        self,
        plan: Plan,
        contexts: Sequence[int],
        texts: Sequence[Sequence[int]],
        *,
        later_contexts: Sequence[int] = (),
        depths: Sequence[int] = (),
        width: int | None = None,
        prompt_tokens: int | None = None,
        seed: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self.plan = plan
        self.contexts = checked_contexts(plan, contexts)
        self.width = affordable_width(plan, width or plan.config.engine.width, self.contexts[-1])
        self.prompt_tokens = prompt_tokens or self.contexts[len(self.contexts) // 2]
        dims = plan.model.network.dims
        self._streams = Streams(texts, dims.vocab_size)
        self._company = Company(
            plan.max_loops, dims.max_positions, tuple(later_contexts), tuple(depths)
        )
        self._seed = seed
        needs = RULES[plan.policy.rule].needs
        # A rule that computes nothing costs nothing: its launches are the plain ones.
        self._decodes: tuple[CellKind, ...] = ("plain", "with_exit")
        if needs is Needs.NOTHING:
            self._decodes = ("plain",)
        kinds: tuple[CellKind, ...] = (*self._decodes, "prefill")
        # A pass after the first is quick where all cells' prompts can stay.
        held = len(self.contexts) * self.width * self.contexts[-1] * len(self._decodes)
        keeps = held <= affordable_positions(plan)
        self._instruments = {
            kind: _Instrument(plan, kind, self.width, clock, keeps) for kind in kinds
        }
        self._kept: list[StagePassRecord] = []
        self._timed: list[StagePassPoint] = []
        self._floors: StageFloors | None = None
        self._warm = False
        self._seconds = 0.0

    @property
    def cells(self) -> list[Cell]:
        """The grid: widths 1, 2, 4, … at every context, and chunks of prompt tokens."""
        grid = [
            Cell(kind, rows, context)
            for kind in self._decodes
            for rows in widths(self.width)
            for context in self.contexts
        ]
        sizes = chunk_sizes(
            self.plan.config.engine.prefill_tokens,
            self._instruments["prefill"].residents,
            self.plan.model.network.dims.max_positions,
        )
        return grid + [Cell("prefill", rows, self.prompt_tokens) for rows in sizes]

    @property
    def kept(self) -> tuple[StagePassRecord, ...]:
        """What the passes found, in their order. One that was broken off is none."""
        return tuple(self._kept)

    @property
    def passes(self) -> int:
        """How many were kept."""
        return len(self._kept)

    def one_pass(self) -> None:
        """Time every cell once (``pass_order``). The first call warms up before it."""
        if not self._warm:
            self._pass(keep=False)
            self._warm = True
        start = time.monotonic()
        self._pass(keep=True)
        self._seconds += time.monotonic() - start
        self._kept.append(StagePassRecord(number=self.passes, points=self._timed))

    def curves(self) -> StageCurves:
        """The document of the passes so far. ValueError before the first."""
        if not self.passes:
            raise ValueError("stage curves: no pass was made")
        floors = self._floors or measure_floors(self.plan.model.network, self.plan.max_loops)
        self._floors = floors
        return StageCurves(
            key=stage_key(self.plan),
            model=self.plan.model.name,
            contexts=list(self.contexts),
            rows="ragged" if self._company.contexts else "equal",
            passes=self.passes,
            points=points_of(self._kept, floors),
            floors=floors,
            measured_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            command=manifest.typed_command(sys.argv),
            seconds=self._seconds,
            notes=_notes(self.plan),
        )

    def _pass(self, keep: bool) -> None:
        self._timed = []
        cells = pass_order(self.cells, random.Random(f"{self._seed}/{self.passes}"))
        gc.collect()
        # As in timed runs: a collection in the middle of a launch would be counted as its time.
        gc.disable()
        try:
            for cell in cells:
                self._time(cell, keep)
        finally:
            gc.enable()

    def _time(self, cell: Cell, keep: bool) -> None:
        instrument = self._instruments[cell.kind]
        records = instrument.run(self._requests(cell))
        if not keep:
            return
        for found in read_launches(cell, records):
            self._timed.append(
                StagePassPoint(
                    stage=found.stage,
                    rows=cell.rows,
                    context=cell.context,
                    mean_s=found.mean_s,
                    launches=found.count,
                )
            )

    def _requests(self, cell: Cell) -> list[Request]:
        if cell.kind == "prefill":
            return prefill_requests(cell, self._streams, self._instruments["prefill"].residents)
        policy = self.plan.policy if cell.kind == "with_exit" else ExitPolicy()
        return decode_requests(cell, self._streams, self._company, policy)


def pass_order(cells: Sequence[Cell], numbers: random.Random) -> list[Cell]:
    """The cells in an order drawn anew, those of one launch with and without the rule together.

    What the rule adds is a small difference of two times, which a machine that drifts from one end
    of a pass to the other would hide.
    """
    launches: dict[tuple[bool, int, int], list[Cell]] = {}
    for cell in cells:
        launches.setdefault((cell.kind == "prefill", cell.rows, cell.context), []).append(cell)
    drawn = list(launches.values())
    numbers.shuffle(drawn)
    for together in drawn:
        numbers.shuffle(together)
    return [cell for together in drawn for cell in together]


def affordable_positions(plan: Plan) -> int:
    """Positions at full depth that the meter may hold: a share of the memory that is free now."""
    network = plan.model.network
    shape = cache_shape(network.dims, plan.kv_layout, plan.max_loops, network.dtype)
    # Kept prompts hold a row for every loop, and pools grow by doubling.
    row = shape.boundary_bytes + plan.max_loops * shape.row_bytes[Stage.CORE]
    return int(MEMORY_SHARE * free_bytes(network.device)) // row


def affordable_width(plan: Plan, width: int, context: int) -> int:
    """The widest launches of this context whose keys and values the meter may hold, at least 1.

    Below the width asked for, the curves do not reach a run's widest launches, and what is made
    from them says so.
    """
    return max(1, min(width, affordable_positions(plan) // context))


class _Instrument:
    """The engine that serves one kind of cell, and the log of its launches."""

    def __init__(
        self, plan: Plan, kind: CellKind, width: int, clock: Clock | None, keeps_prompts: bool
    ) -> None:
        subject = plan.subject(Mode("cdb" if kind == "with_exit" else "static"))
        settings = plan.settings(subject, live=False)
        cap = max(width, settings.max_residents)
        self.residents = cap if kind == "prefill" else width
        # A cell's requests are all resident at once, so no budget may part them; its prompts are
        # cached where a pass is about what comes after them.
        settings = replace(
            settings,
            max_residents=self.residents,
            width=width,
            kv_budget_bytes=None,
            kv_host_bytes=None,
            prefix_cache=keeps_prompts and kind != "prefill" and settings.state_init == "zero",
            coda_min_rows=1,
            min_free_residents=None,
            max_itl_s=None,
            ride=False,
        )
        self._log = LaunchLog()
        self._engine = Engine(subject.model.network, settings, observer=self._log, clock=clock)

    def run(self, requests: Sequence[Request]) -> list[LaunchRecord]:
        """Serve them; the launches that it took."""
        self._log.records.clear()
        failed = [r.error for r in self._engine.run(requests) if r.error is not None]
        assert not failed, f"a cell's request was refused: {failed[0]}"
        return list(self._log.records)


def _notes(plan: Plan) -> list[str]:
    """What sets these launches apart from a run's on the checkpoint as it is."""
    model = plan.model
    notes = [] if model.weight_seed is None else [f"random weights (seed {model.weight_seed})"]
    if model.layers is not None:
        notes.append(f"layers {model.layers} in place of the model's own: for timing only")
    return [*notes, "tokens are forced; those that exit leave at scripted depths"]
