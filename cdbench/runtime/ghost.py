"""Ghost loops: a live run in which every later token's signal is also known beyond its exit.

When a token has left and its coda has run, what it carried (state, injection, readout, rule memory)
is dead until its request's next prelude. There the ghost goes on in place, one loop after the
other up to R, with its rule's signal, and its readout where the rule needs one. Its keys and values
are put into the launch's own copy of what it reads and stored nowhere, so no other token, no pool
and no schedule can notice it; the observer is told of none of its launches.

    engine = GhostEngine(model.network, EngineConfig(mode="cdb", max_residents=8))
    for result in engine.run(requests):
        signals = engine.signals.of(result)     # [later tokens, R]
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.attention.sdpa import SdpaPlan
from cdbench.runtime.core import (
    Clock,
    FloatArray,
    IntArray,
    LaunchObserver,
    RequestResult,
    Stage,
)
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_tests import SignalWatch
from cdbench.runtime.launch_contexts import NO_ROWS, LaunchContext, LaunchContexts
from cdbench.runtime.residents import Residents
from cdbench.runtime.results import Detokenize
from cdbench.runtime.runner import Runner

FIRST_HELD = 16
"""Tokens of a request that room is made for at first; then for twice as many as there are."""


class GhostEngine(Engine):
    """An engine whose later tokens run ghost loops; its results are those of a plain one.

    ``signals`` has each later token's signal at all R loops. Rules that are scripted (``none``,
    ``fixed``, replayed depths alone) have none.
    """

    def __init__(
        self,
        model: StagedModel,
        config: EngineConfig | None = None,
        *,
        detokenize: Detokenize | None = None,
        clock: Clock | None = None,
        observer: LaunchObserver | None = None,
    ) -> None:
        super().__init__(model, config, detokenize=detokenize, clock=clock, observer=observer)
        self.signals = SignalLog(self.residents)
        self.ghosts = GhostRunner(self.runner)
        self.watch_signals(self.signals.saw)
        self.new_tokens.watch = self._run_out

    def watch_signals(self, watch: SignalWatch) -> None:
        """Have every signal told, those of ghost loops too."""
        self.runner.tests.watch = self.ghosts.tests.watch = watch

    def _run_out(self, rows: IntArray, tokens: IntArray, requested: IntArray) -> None:
        # The first moment at which these tokens are complete, and the last before the next ones.
        self.ghosts.run_out(rows[self.residents.outputs.count[rows] > 0])


class GhostRunner(Runner):
    """Launches that read the cache and leave nothing in it; unobserved and untimed."""

    def __init__(self, live: Runner) -> None:
        super().__init__(live.model, live.cache, live.residents, live.clock, observer=None)
        self.carried = live.carried
        self.contexts = GhostContexts(self.cache, self.residents, self.device, self.dtype)

    def run_out(self, residents: IntArray) -> None:
        """Run these complete tokens up to R loops, for the signals alone."""
        res = self.residents
        left_at = res.loop[residents]
        while (going := residents[res.loop[residents] < res.max_loops]).size:
            self.core(going)
            reading = going[res.reads_out[going]]
            if reading.size:
                self.coda(reading)
        res.loop[residents] = left_at


class GhostContexts(LaunchContexts):
    """Contexts that take no row."""

    def decode(self, stage: Stage, residents: IntArray, loops: IntArray) -> LaunchContext:
        positions = self.residents.position[residents]
        cache = self.cache.stages.get(stage)
        if cache is None:
            return self.bare(positions, loops)
        slots = cache.slots_of(loops)
        plan = GhostPlan(cache, residents, slots, positions, [], self.dtype)
        plan.own = torch.from_numpy(positions).to(self.device)
        return GhostContext.of_arrays(positions, loops, self.device, cache, NO_ROWS, plan)


class GhostContext(LaunchContext):
    """What a ghost's layers see: attention as any token's, but nothing is stored."""

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        assert self._plan is not None, "this stage declared no layers"
        return self._plan.attend(layer, q_THE, k_TGE, v_TGE)


class GhostPlan(SdpaPlan):
    """Reads every earlier token where it lies, and its own token in the gathered copy alone.

    The copy is the scratch row: the next gather overwrites it.
    """

    own: Tensor
    """``[T]``: where each query's own keys stand in what it reads."""

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        self._keys, self._values = k_TGE, v_TGE
        return super().attend(layer, q_THE, k_TGE, v_TGE)

    def gathered(self, layer: int) -> Tensor:
        gathered = super().gathered(layer)
        rows = torch.arange(self.decode_rows, device=gathered.device)
        gathered[rows, self.own, 0] = self._keys
        gathered[rows, self.own, 1] = self._values
        return gathered


class SignalLog:
    """The signals of every later token by loop, under its request's id.

    Residents change their numbers when they are preempted, so lines are kept by request. A token
    has its signals in the order of its loops, each once.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._values: dict[str, FloatArray] = {}
        self._known: dict[str, IntArray] = {}

    def saw(self, residents: IntArray, signal_T: Tensor) -> None:
        """Keep the signals of the loops these residents' tokens have just run."""
        res = self._residents
        # Entry 0 is the prompt's: it runs at full depth, whatever its signals.
        tokens = res.outputs.count[residents]
        values = signal_T.double().cpu().numpy()
        for r, token, value in zip(residents.tolist(), tokens.tolist(), values, strict=True):
            if token == 0:
                continue
            request = res.request(r)
            known = self._known.get(request.id)
            if known is None or token >= known.size:
                self._grow(request.id, min(max(FIRST_HELD, 2 * token), request.new_tokens))
            loop = self._known[request.id][token]
            self._values[request.id][token, loop] = value
            self._known[request.id][token] += 1

    def _grow(self, name: str, tokens: int) -> None:
        """Make room for so many tokens of a request; how many will come, nobody knows."""
        values, known = np.full((tokens, self._residents.max_loops), np.nan), np.zeros(tokens, int)
        if name in self._known:
            have = self._known[name].size
            values[:have], known[:have] = self._values[name], self._known[name]
        self._values[name], self._known[name] = values, known

    def of(self, result: RequestResult) -> FloatArray:
        """Signals ``[later tokens, R]`` of a finished request; NaN is what the rule computed.

        Raises ValueError where its rule has no signal.
        """
        tokens, loops = len(result.tokens), self._residents.max_loops
        if tokens < 2:
            return np.empty((0, loops))
        known = self._known.get(result.id)
        if known is None or (known[1:tokens] != loops).any():
            raise ValueError(f"request {result.id!r}: no signal at every loop was computed")
        return self._values[result.id][1:tokens]
