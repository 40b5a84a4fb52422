"""The runner: carries out launches on the device and times them. It decides nothing.

One launch is one batched forward of one stage, from gathering its rows to having its result (the
exit tests or the tokens) where the host can read it. Everything in between counts as the stage's
time; what the engine does between launches counts as host time. A launch is only begun here: what
it says is on its way when it returns (``readback.py``), and who needs it waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import StageContext, StagedModel
from cdbench.runtime.carried import Batch, Carried
from cdbench.runtime.core import (
    Clock,
    IntArray,
    LaunchObserver,
    Stage,
)
from cdbench.runtime.exit_rule import Evidence, Needs
from cdbench.runtime.exit_tests import ExitTests
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.launch_contexts import LaunchContexts
from cdbench.runtime.readback import Chosen, LoopTests, Readback, link_of, to_device
from cdbench.runtime.recorders import Outputs
from cdbench.runtime.request_lines import NOT_FORCED
from cdbench.runtime.residents import Residents
from cdbench.runtime.sampling import draw, logprobs_of, state_keys, uniform
from cdbench.runtime.timing import Mark, launch_timer
from cdbench.runtime.vocabulary import likeliest

if TYPE_CHECKING:
    from cdbench.runtime.graphs import StageGraphs

StageFunction = Callable[[Tensor, StageContext], Outputs]
"""One launch of a stage for the residents ``[T]``, over a context: its results, a row each."""


class Runner:
    """Launches over one model, one cache and one set of residents."""

    def __init__(
        self,
        model: StagedModel,
        cache: KVCache,
        residents: Residents,
        clock: Clock,
        observer: LaunchObserver | None,
        random_state: bool = False,
    ) -> None:
        self.model, self.cache, self.residents = model, cache, residents
        self.clock = clock
        self.timer = launch_timer(model.device, clock, observer)
        self.random_state = random_state
        # Looked up once: a module finds them by walking its parameters.
        self.device, self.dtype = model.device, model.dtype
        self.contexts = LaunchContexts(cache, residents, self.device, self.dtype)
        self.tests = ExitTests(model, residents, self.device)
        self.runnable = 0
        """Requests resident or waiting, set by the engine before each launch."""
        self.watch_choice: Callable[[IntArray, Tensor], None] | None = None
        """Told the likeliest tokens ``[T]`` of every readout, before any is drawn or forced."""
        self.link = link_of(self.device)
        self.graphs: StageGraphs | None = None
        """Where decode launches are captured."""
        self.functions: dict[Stage, StageFunction] = {
            Stage.PRELUDE: self._run_prelude,
            Stage.CORE: self._run_core,
            Stage.CODA: self._run_coda,
        }
        """What a decode launch computes; it only reads what residents carry."""
        self.tokens = torch.zeros(residents.capacity, dtype=torch.int64, device=self.device)
        """The last token of each resident, which its next prelude embeds."""
        self.carried = Carried(
            residents.capacity, model.dims, self.dtype, residents.signal_dtype, self.device
        )

    # Decode launches: one row per resident.

    def prelude(self, residents: IntArray, last_depths: IntArray) -> Readback | None:
        """Embed each resident's last token and store its state before loop 1.

        The token before it is complete at ``last_depths``: its deeper slots are settled first.
        Answers whose pre-loop gate calls an exit after loop 1; None where no gate was asked.
        """
        res = self.residents
        began = self.start()
        before = res.position[residents] - 1
        for cache in self.cache.stages.values():
            cache.settle(residents, before, last_depths)
        where = self.tensor(residents)
        ones = np.ones_like(residents)
        state, *injection = self._stage(Stage.PRELUDE, residents, where, ones, began)
        calls_T = self.tests.before_loops(residents, injection[0] if injection else state)
        res.memories.forget(where)
        state = self.initial_state(residents, res.position[residents], state)
        self.carried.begin(where, state, injection[0] if injection else None)
        calls = None if calls_T is None else self.link.fetch(calls_T)
        self.launched(Stage.PRELUDE, began, self.reach(residents), decode_rows=residents.size)
        return calls

    def core(self, residents: IntArray) -> LoopTests:
        """Run one more loop for each resident, and test what it leaves."""
        loops = self.residents.loop[residents] + 1
        began = self.start()
        if self.graphs is None:
            batch = self.carried.batch(residents)
            where, ctx = batch.where, self.contexts.decode(Stage.CORE, residents, loops)
            self.prepared(began)
            outputs = self._loop(where, batch.state, batch.injection, ctx)
            tests = self.after_loop(residents, loops, where, outputs, batch)
        else:
            where = self.tensor(residents)
            outputs = self._stage(Stage.CORE, residents, where, loops, began)
            tests = self.after_loop(residents, loops, where, outputs)
        reach = self.reach(residents)
        self.launched(Stage.CORE, began, reach, decode_rows=residents.size, loops=loops)
        self.residents.loop[residents] = loops
        return tests

    def after_loop(
        self,
        residents: IntArray,
        loops: IntArray,
        where: Tensor,
        outputs: Outputs,
        batch: Batch | None = None,
    ) -> LoopTests:
        """Keep what a loop left of each resident (``absorbed``), and test it."""
        before, state, *gathered = outputs
        self.carried.keep(where, state, gathered[0] if gathered else None, batch)
        seen: dict[Needs, Evidence] = {Needs.GATE: (state,), Needs.STATES: (state, before)}
        if gathered:
            seen[Needs.HALTING] = (gathered[0][:, 0],)
        found = self.tests.after_loop(residents, loops, state, seen)
        said = [values for values in found if values is not None]
        return LoopTests(residents, loops, self.link.fetch(*said) if said else None)

    def coda(self, residents: IntArray, prefill: bool = False) -> Chosen:
        """Read out the residents' states: next tokens, their logprobs, and tests on the readout.

        ``prefill`` says that they stand at the last position of their prompts.
        """
        began = self.start()
        where = self.tensor(residents)
        (logits,) = self._stage(Stage.CODA, residents, where, np.ones_like(residents), began)
        chosen = self.choose(residents, where, logits, tested=True)
        rows = residents.size
        reach = self.reach(residents)
        self.launched(Stage.CODA, began, reach, 0 if prefill else rows, rows if prefill else 0)
        return chosen

    # What decode launches compute.

    def _stage(
        self, stage: Stage, residents: IntArray, where: Tensor, loops: IntArray, began: Mark
    ) -> Outputs:
        """A decode launch of one stage, captured where launches are; ``where``: the residents."""
        if self.graphs is not None and residents.size <= self.graphs.width:
            positions = self.residents.position[residents]
            launch = self.graphs.prepare(stage, residents, positions, loops)
        else:
            ctx = self.contexts.decode(stage, residents, loops)
            launch = partial(self.functions[stage], where, ctx)
        self.prepared(began)
        return launch()

    def _run_prelude(self, where: Tensor, ctx: StageContext) -> Outputs:
        state, injection = self.model.prelude(self.tokens.index_select(0, where), ctx)
        return (state,) if injection is None else (state, injection)

    def _run_core(self, where: Tensor, ctx: StageContext) -> Outputs:
        return self._loop(where, *self.carried.rows(where), ctx)

    def _loop(
        self, where: Tensor, before: Tensor, injection: Tensor | None, ctx: StageContext
    ) -> Outputs:
        return self.absorbed(where, before, self.model.core(before, injection, ctx))

    def absorbed(self, where: Tensor, before: Tensor, state: Tensor) -> Outputs:
        """What a loop leaves: the states before and after it, and what the readout has gathered."""
        readout = self.carried.readout
        if readout is None:
            return before, state
        halt_at = self.residents.halt_at.index_select(0, where)
        gathered = self.model.absorb(state, readout.index_select(0, where), halt_at)
        return before, state, gathered

    def _run_coda(self, where: Tensor, ctx: StageContext) -> Outputs:
        carried = self.carried
        state = carried.state.index_select(0, where)
        if carried.readout is not None:
            state = self.model.readout(state, carried.readout.index_select(0, where))
        return (self.model.head(self.model.coda(state, ctx)),)

    # What launches share.

    def initial_state(self, residents: IntArray, positions: IntArray, state: Tensor) -> Tensor:
        """The state before loop 1: the prelude's, or drawn anew for each token."""
        if not self.random_state:
            return state
        keys = state_keys(self.residents.stream[residents], positions)
        return self.model.random_state(self.tensor(keys)).to(self.dtype)

    def tensor(self, array: np.ndarray) -> Tensor:
        """A host array on the device."""
        return to_device(array, self.device)

    def put_tokens(self, residents: IntArray, tokens: IntArray) -> None:
        """Say which tokens these residents' next preludes embed."""
        self.tokens.index_copy_(0, self.tensor(residents), self.tensor(tokens))

    def choose(
        self, residents: IntArray, where: Tensor, logits: Tensor, tested: bool = False
    ) -> Chosen:
        """Choose the next token of each resident: its next prelude embeds it, the host is told.

        ``tested`` says that rules which read logits are to see these.
        """
        res = self.residents
        tokens = likeliest(logits)
        if self.watch_choice is not None:
            self.watch_choice(residents, tokens)
        drawn = res.temperature[residents] > 0
        if (count := np.count_nonzero(drawn)) == residents.size:
            tokens = self._draw(residents, logits)
        elif count:
            rows = self.tensor(np.flatnonzero(drawn))
            tokens[rows] = self._draw(residents[drawn], logits[rows])
        forced = res.forced[residents, res.outputs.count[residents]]
        if np.count_nonzero(forced != NOT_FORCED):
            wanted = self.tensor(forced)
            tokens = torch.where(wanted == NOT_FORCED, tokens, wanted)
        self.tokens.index_copy_(0, where, tokens)
        said = [tokens, logprobs_of(logits, tokens).double()]
        met_T = self.tests.met(residents, {Needs.LOGITS: (logits,)}) if tested else None
        if met_T is not None:
            said.append(met_T)
        return Chosen(self.link.fetch(*said))

    def _draw(self, residents: IntArray, logits: Tensor) -> Tensor:
        res = self.residents
        numbers = uniform(res.stream[residents], res.outputs.count[residents])
        return draw(
            logits,
            self.tensor(res.temperature[residents]),
            self.tensor(res.top_k[residents]),
            self.tensor(res.top_p[residents]),
            self.tensor(numbers),
        )

    def reach(self, residents: IntArray) -> int:
        """Positions that the longest of these rows attends to."""
        return 0 if self.timer is None else int(self.residents.position[residents].max()) + 1

    def start(self) -> Mark:
        return 0.0 if self.timer is None else self.timer.start()

    def prepared(self, began: Mark) -> None:
        """Tell the timer that a launch's inputs are made: what follows is computed."""
        if self.timer is not None:
            self.timer.prepared(began)

    def launched(
        self,
        stage: Stage,
        began: Mark,
        reach: int,
        decode_rows: int = 0,
        prefill_rows: int = 0,
        loops: IntArray | None = None,
    ) -> None:
        """Tell the observer of a launch that ends here; ``began`` is what ``start`` gave."""
        if self.timer is not None:
            what = (stage, decode_rows, prefill_rows, loops, reach, self.runnable)
            self.timer.finish(began, what)
