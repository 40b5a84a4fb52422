"""Launches of prompt tokens: consecutive tokens of their prompts, packed without padding.

A chunk goes through the stages launch by launch; at a loop it may share a core launch with decode
rows. What a launch is, how it is timed and how tokens are chosen is the runner's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.attention.sdpa import Segment, segment_positions
from cdbench.runtime.core import BoolArray, IntArray, Stage
from cdbench.runtime.exit_rule import Evidence, Needs
from cdbench.runtime.readback import Chosen, LoopTests, to_device
from cdbench.runtime.request_lines import FULL_MASS
from cdbench.runtime.runner import Runner


@dataclass
class PrefillChunk:
    """Prompt tokens that run together, and what they carry from launch to launch.

    ``ends`` are the rows that are the last of their prompts, ``residents`` whose prompts those are.
    """

    segments: list[Segment]
    ids: IntArray
    ends: IntArray
    residents: IntArray
    state: Tensor = field(default_factory=lambda: torch.empty(0))
    injection: Tensor | None = None
    readout: Tensor | None = None
    halt_at: Tensor | None = None

    @property
    def reach(self) -> int:
        """Positions that the longest row attends to."""
        return max(s.start + s.length for s in self.segments)

    def last_rows(self, values: Tensor | None = None) -> Tensor:
        """The rows of ``values`` (default: the state) at which prompts end."""
        values = self.state if values is None else values
        return values.index_select(0, to_device(self.ends, values.device))


class PromptLaunches:
    """Prompt launches of one runner."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.model, self.residents = runner, runner.model, runner.residents

    def prelude(self, chunk: PrefillChunk, select_first: bool = False) -> None:
        """Embed a chunk of prompt tokens: its state before loop 1."""
        began = self.runner.start()
        ctx = self.runner.contexts.prefill(Stage.PRELUDE, chunk.segments, 1)
        ids = self.runner.tensor(chunk.ids)
        self.runner.prepared(began)
        chunk.state, chunk.injection = self.model.prelude(ids, ctx)
        if self.runner.random_state:
            chunk.state = self.runner.initial_state(*segment_positions(chunk.segments), chunk.state)
        if self.runner.carried.readout is not None:
            chunk.readout = self.runner.carried.empty_readout(chunk.ids.size)
            full = torch.full((chunk.ids.size,), FULL_MASS, device=self.runner.device)
            chunk.halt_at = full.double()
            if select_first:
                own = self.residents.halt_at.index_select(0, self.runner.tensor(chunk.residents))
                chunk.halt_at.index_copy_(0, self.runner.tensor(chunk.ends), own)
        self.runner.launched(Stage.PRELUDE, began, chunk.reach, prefill_rows=chunk.ids.size)

    def core(self, chunk: PrefillChunk, loop: int, watch: bool) -> BoolArray:
        """One loop over a chunk; with ``watch``, the tests at the prompts that end in it."""
        began = self.runner.start()
        before = chunk.state
        ctx = self.runner.contexts.prefill(Stage.CORE, chunk.segments, loop)
        self.runner.prepared(began)
        chunk.state = self.model.core(before, chunk.injection, ctx)
        met = self._after_chunk(chunk, before, watch)
        self.runner.launched(Stage.CORE, began, chunk.reach, prefill_rows=chunk.ids.size)
        return met

    def core_with_decode(
        self, residents: IntArray, chunk: PrefillChunk, loop: int, watch: bool
    ) -> tuple[LoopTests, BoolArray]:
        """``Runner.core`` for these residents and ``core`` for a chunk, in one launch.

        The rows stay independent: decode rows first, each at its own loop, then the chunk's.
        """
        loops = self.residents.loop[residents] + 1
        began = self.runner.start()
        where = self.runner.tensor(residents)
        before, injection = self.runner.carried.rows(where)
        chunk_before = chunk.state
        if injection is not None:
            assert chunk.injection is not None
            injection = torch.cat([injection, chunk.injection])
        ctx = self.runner.contexts.mixed(residents, loops, chunk.segments, loop)
        self.runner.prepared(began)
        both = self.model.core(torch.cat([before, chunk_before]), injection, ctx)
        state, chunk.state = both[: residents.size], both[residents.size :]
        outputs = self.runner.absorbed(where, before, state)
        tests = self.runner.after_loop(residents, loops, where, outputs)
        chunk_met = self._after_chunk(chunk, chunk_before, watch)
        self.runner.launched(
            Stage.CORE, began, self.runner.reach(residents), residents.size, chunk.ids.size, loops
        )
        self.residents.loop[residents] = loops
        return tests, chunk_met

    def _after_chunk(self, chunk: PrefillChunk, before: Tensor, watch: bool) -> BoolArray:
        """What a loop leaves of a chunk beside its state; with ``watch``, the tests at its ends."""
        if chunk.readout is not None:
            assert chunk.halt_at is not None
            chunk.readout = self.model.absorb(chunk.state, chunk.readout, chunk.halt_at)
        if not (watch and chunk.residents.size):
            return np.zeros(chunk.residents.size, np.bool_)
        last = chunk.last_rows()
        seen: dict[Needs, Evidence] = {
            Needs.GATE: (last,),
            Needs.STATES: (last, chunk.last_rows(before)),
        }
        if chunk.readout is not None:
            seen[Needs.HALTING] = (chunk.last_rows(chunk.readout)[:, 0],)
        met_T = self.runner.tests.met(chunk.residents, seen)
        readback = None if met_T is None else self.runner.link.fetch(met_T)
        # Which loop a first token is read from saves no loop, so waiting for it costs nothing else.
        return LoopTests(chunk.residents, np.zeros_like(chunk.residents), readback).wait()

    def coda(self, chunk: PrefillChunk) -> bool:
        """Run the coda's layers over prompt tokens, for their keys; False where it has none."""
        began = self.runner.start()
        if chunk.readout is not None:
            chunk.state = self.model.readout(chunk.state, chunk.readout)
        if not self.model.dims.coda_layers:
            return False
        ctx = self.runner.contexts.prefill(Stage.CODA, chunk.segments, 1)
        self.runner.prepared(began)
        chunk.state = self.model.coda(chunk.state, ctx)
        self.runner.launched(Stage.CODA, began, chunk.reach, prefill_rows=chunk.ids.size)
        return True

    def first_tokens(self, residents: IntArray, hidden: Tensor) -> Chosen:
        """Choose first tokens from the rows of the prompts' last positions.

        Where the coda has layers, they have run over the prompts already.
        """
        began = self.runner.start()
        if not self.model.dims.coda_layers:
            ones = np.ones_like(residents)
            hidden = self.model.coda(hidden, self.runner.contexts.bare(ones, ones))
        where = self.runner.tensor(residents)
        chosen = self.runner.choose(residents, where, self.model.head(hidden))
        reach = self.runner.reach(residents)
        self.runner.launched(Stage.CODA, began, reach, prefill_rows=residents.size)
        return chosen
