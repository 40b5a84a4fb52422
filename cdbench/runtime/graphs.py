"""Captured launches: a decode launch of so many rows is recorded once and then only replayed.

On a GPU a launch is hundreds of kernels, and starting them one by one can take longer than they
run. A *graph* is the whole of them, started at once. It has fixed shapes and fixed addresses, so
launches are captured for 1, 2, 4, … rows up to the width, and filled up with rows that nobody
reads: they stand at position 0 of any line and write the pool's scratch row. Where the attention
backend has the context in its shapes, that is padded up as well (64, 96, 128, 192, … positions).
What differs from launch to launch (whose tokens, positions, loops, rows) is written into one tensor
before the replay. A captured function only reads what residents carry: running it twice changes
nothing.

Prompts (but the readouts of ``first_token: select``), and decode rows that a chunk rides with, are
launched as they come, without a graph; so is what is done with a launch's results: keeping states,
exit tests, choosing tokens.

On a CPU a graph is the function itself, called again on the same tensors (``recorders.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.attention.backends import Backend
from cdbench.runtime.attention.captured import CapturedAttention, Reads, captured_attention
from cdbench.runtime.core import IntArray, Stage
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.launch_contexts import LaunchContext
from cdbench.runtime.readback import put
from cdbench.runtime.recorders import Graph, Outputs, Recorder, recorder_of
from cdbench.runtime.runner import Runner, StageFunction
from cdbench.runtime.stage_cache import StageCache

NOBODY: IntArray = np.empty(0, dtype=np.int64)
LEAST_CONTEXT = 64
WHERE, POSITIONS, LOOPS, SLOTS, ROWS = range(5)
"""The lines of a launch's inputs: resident, position, loop, slot (0-based), row of the pool."""


@dataclass
class _OfStage:
    """The graphs of one stage by rows and context, and the memory whose addresses they have."""

    cache: StageCache | None
    graphs: dict[tuple[int, int], Graph] = field(default_factory=dict)
    contexts: set[int] = field(default_factory=set)
    memory: tuple[Tensor, ...] = ()

    def forget_what_moved(self) -> None:
        """Drop all graphs where the table or the pool has been made anew."""
        if self.cache is None:
            return
        now = (self.cache.table.on_device, self.cache.pool.layers[0])
        if len(self.memory) != len(now) or any(
            a is not b for a, b in zip(now, self.memory, strict=True)
        ):
            self.graphs.clear()
            self.memory = now


class StageGraphs:
    """The captured decode launches of one runner, at most ``width`` rows wide.

    They are captured where they first come, and for all numbers of rows by ``capture``.
    """

    def __init__(
        self,
        functions: dict[Stage, StageFunction],
        cache: KVCache,
        width: int,
        attention: CapturedAttention,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        self.width, self.recorder = width, recorder
        self._functions, self._attention = functions, attention
        self._stages = {stage: _OfStage(cache.stages.get(stage)) for stage in functions}
        self._inputs = torch.zeros((5, width), dtype=torch.int64, device=device)
        self.captures = 0
        """Graphs captured so far."""
        self.seconds = 0.0
        """What that took."""

    @staticmethod
    def of(runner: Runner, width: int, backend: Backend) -> StageGraphs:
        """Those of a runner, captured as its device does it."""
        attention, recorder = captured_attention(backend), recorder_of(runner.device)
        functions, device = runner.functions, runner.device
        return StageGraphs(functions, runner.cache, width, attention, recorder, device)

    def prepare(
        self, stage: Stage, residents: IntArray, positions: IntArray, loops: IntArray
    ) -> Callable[[], Outputs]:
        """A launch at most ``width`` rows wide, its inputs written: a call makes it.

        It is called before another is prepared, and the next one overwrites what it returns.
        """
        of = self._stages[stage]
        context = self._context(of, int(positions.max()) + 1)
        of.contexts.add(context)
        self._fill(of.cache, residents, positions, loops)
        rows = residents.size
        graph = self._graph(stage, row_bucket(rows, self.width), context)
        return lambda: tuple(values[:rows] for values in graph.replay())

    def capture(self) -> None:
        """Capture every number of rows, at the contexts that have come so far.

        Once the pools and tables have their sizes: what is captured on the way is dropped when they
        grow. Nothing that a resident holds is touched.
        """
        for stage, of in self._stages.items():
            self._fill(of.cache, NOBODY, NOBODY, NOBODY)
            for context in sorted(of.contexts, reverse=True):
                for rows in reversed(row_buckets(self.width)):
                    self._graph(stage, rows, context)

    @property
    def note(self) -> str:
        """What was captured, for a reader of a result."""
        held = sum(len(of.graphs) for of in self._stages.values())
        return (
            f"launches are captured: {held} graphs, {self.seconds:.1f} s to capture, "
            f"{self.recorder.bytes:,} bytes of their own"
        )

    def _context(self, of: _OfStage, positions: int) -> int:
        if of.cache is None or not self._attention.pads:
            return 0
        return context_bucket(positions, of.cache.table.host.shape[2])

    def _fill(
        self,
        cache: StageCache | None,
        residents: IntArray,
        positions: IntArray,
        loops: IntArray,
    ) -> None:
        """Write the inputs of a launch; the columns behind it are padding."""
        n = residents.size
        inputs = np.zeros((5, self.width), np.int64)
        inputs[LOOPS] = 1
        inputs[WHERE, :n], inputs[POSITIONS, :n], inputs[LOOPS, :n] = residents, positions, loops
        if cache is not None:
            inputs[SLOTS, :n] = cache.slots_of(loops)
            inputs[ROWS] = cache.pool.scratch_row
            inputs[ROWS, :n] = cache.write_rows(residents, positions, loops)
        put(self._inputs, inputs)

    def _graph(self, stage: Stage, rows: int, context: int) -> Graph:
        of = self._stages[stage]
        of.forget_what_moved()
        graph = of.graphs.get((rows, context))
        if graph is None:
            began = time.perf_counter()
            graph = of.graphs[rows, context] = self.recorder.record(
                self._launch(stage, rows, context)
            )
            self.captures += 1
            self.seconds += time.perf_counter() - began
        return graph

    def _launch(self, stage: Stage, rows: int, context: int) -> Callable[[], Outputs]:
        """The launch to capture: device operations alone, on memory that stays where it is."""
        function, cache, inputs = self._functions[stage], self._stages[stage].cache, self._inputs
        inputs_5T = inputs[:, :rows]
        reads = Reads(inputs_5T[WHERE], inputs_5T[SLOTS], inputs_5T[POSITIONS])

        def launch() -> Outputs:
            plan = None
            if cache is not None:
                plan = self._attention.make_plan(cache, reads, context)
            positions, loops, rows_T = (inputs_5T[line] for line in (POSITIONS, LOOPS, ROWS))
            return function(reads.residents, LaunchContext(positions, loops, cache, rows_T, plan))

        return launch


def row_buckets(width: int) -> list[int]:
    """The numbers of rows that launches are captured for: 1, 2, 4, … and the width itself."""
    buckets = [1]
    while buckets[-1] < width:
        buckets.append(min(2 * buckets[-1], width))
    return buckets


def row_bucket(rows: int, width: int) -> int:
    """The least number of captured rows that holds so many."""
    return min(1 << (rows - 1).bit_length(), width)


def context_bucket(positions: int, most: int) -> int:
    """The least captured context that holds so many positions: 64, 96, 128, 192, …, ``most``."""
    size = LEAST_CONTEXT
    while size < positions:
        between = size + size // 2
        size = between if between >= positions else 2 * size
    return min(size, most)
