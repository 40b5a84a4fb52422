"""The runner: carries out launches on the device and times them. It decides nothing.

One launch is one batched forward of one stage, from gathering its rows to having its result (the
exit tests or the tokens) where the host can read it. Everything in between counts as the stage's
time; what the engine does between launches counts as host time.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.runtime.attention.sdpa import SdpaPlan, Segment, segment_positions
from cdbench.runtime.core import (
    BoolArray,
    Clock,
    FloatArray,
    IntArray,
    LaunchObserver,
    LaunchRecord,
    Stage,
)
from cdbench.runtime.exits import Needs
from cdbench.runtime.kv_cache import KVCache, StageCache
from cdbench.runtime.residents import NOT_FORCED, Residents
from cdbench.runtime.sampling import draw, logprobs_of, uniform

NO_ROWS: IntArray = np.empty(0, dtype=np.int64)


class LaunchContext:
    """What the layers of one launch see: positions, loops, and attention through the cache."""

    def __init__(
        self,
        positions: IntArray,
        loops: IntArray,
        device: torch.device,
        cache: StageCache | None,
        rows: IntArray,
        plan: SdpaPlan | None,
    ) -> None:
        self.positions = torch.from_numpy(positions).to(device)
        self.loops = torch.from_numpy(loops).to(device)
        self._cache, self._plan = cache, plan
        self._rows = torch.from_numpy(rows).to(device)

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        assert self._cache is not None, "this stage declared no layers"
        assert self._plan is not None
        self._cache.store(layer, self._rows, k_TGE, v_TGE)
        return self._plan.attend(layer, q_THE, k_TGE, v_TGE)


class Runner:
    """Launches over one model, one cache and one set of residents."""

    def __init__(
        self,
        model: StagedModel,
        cache: KVCache,
        residents: Residents,
        clock: Clock,
        observer: LaunchObserver | None,
    ) -> None:
        self.model, self.cache, self.residents = model, cache, residents
        self.clock, self.observer = clock, observer
        # Looked up once: a module finds them by walking its parameters.
        self.device, self.dtype = model.device, model.dtype
        self.runnable = 0
        """Requests resident or waiting, set by the engine before each launch."""
        shape = (residents.capacity, model.dims.hidden_size)
        self.state = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.injection = torch.zeros_like(self.state) if model.dims.has_injection else None

    # Decode launches: one row per resident.

    def prelude(self, residents: IntArray, last_depths: IntArray) -> None:
        """Embed each resident's token in flight and store its state before loop 1.

        The token before it is complete at ``last_depths``: its deeper slots are settled first.
        """
        res = self.residents
        start_s = self._start()
        before = res.position[residents] - 1
        for cache in self.cache.stages.values():
            cache.settle(residents, before, last_depths)
        ctx = self._decode_context(Stage.PRELUDE, residents, np.ones_like(residents))
        state, injection = self.model.prelude(self._tensor(res.token[residents]), ctx)
        where = self._tensor(residents)
        res.forget(where)
        self.state.index_copy_(0, where, state)
        if self.injection is not None and injection is not None:
            self.injection.index_copy_(0, where, injection)
        self._launched(Stage.PRELUDE, start_s, decode_rows=residents.size)

    def core(self, residents: IntArray) -> BoolArray:
        """Run one more loop for each resident; True where its gate's test is now met."""
        loops = self.residents.loop[residents] + 1
        start_s = self._start()
        ctx = self._decode_context(Stage.CORE, residents, loops)
        where = self._tensor(residents)
        injection = None
        if self.injection is not None:
            injection = self.injection.index_select(0, where)
        state = self.model.core(self.state.index_select(0, where), injection, ctx)
        self.state.index_copy_(0, where, state)
        met = self._tests(residents, Needs.GATE, state)
        self._launched(Stage.CORE, start_s, decode_rows=residents.size, loops=loops)
        self.residents.loop[residents] = loops
        return met

    def coda(self, residents: IntArray) -> tuple[IntArray, FloatArray, BoolArray]:
        """Read out the residents' states: next tokens, their logprobs, and tests on the readout."""
        start_s = self._start()
        ctx = self._decode_context(Stage.CODA, residents, np.ones_like(residents))
        state = self.state.index_select(0, self._tensor(residents))
        logits = self.model.head(self.model.coda(state, ctx))
        tokens, logprobs = self._choose(residents, logits)
        met = self._tests(residents, Needs.LOGITS, logits)
        self._launched(Stage.CODA, start_s, decode_rows=residents.size)
        return tokens, logprobs, met

    # Prefill launches: consecutive prompt tokens, packed without padding.

    def prefill_prelude(
        self, segments: list[Segment], ids: IntArray
    ) -> tuple[Tensor, Tensor | None]:
        ctx_rows = sum(s.length for s in segments)
        start_s = self._start()
        ctx = self._prefill_context(Stage.PRELUDE, segments, 1)
        result = self.model.prelude(self._tensor(ids), ctx)
        self._launched(Stage.PRELUDE, start_s, prefill_rows=ctx_rows)
        return result

    def prefill_core(
        self, segments: list[Segment], loop: int, state: Tensor, injection: Tensor | None
    ) -> Tensor:
        start_s = self._start()
        result = self.model.core(
            state, injection, self._prefill_context(Stage.CORE, segments, loop)
        )
        self._launched(Stage.CORE, start_s, prefill_rows=state.shape[0])
        return result

    def prefill_coda(self, segments: list[Segment], state: Tensor) -> Tensor:
        """Run the coda's layers over prompt tokens, for their keys and values."""
        start_s = self._start()
        result = self.model.coda(state, self._prefill_context(Stage.CODA, segments, 1))
        self._launched(Stage.CODA, start_s, prefill_rows=state.shape[0])
        return result

    def first_tokens(
        self, residents: IntArray, hidden: Tensor, coda_has_run: bool
    ) -> tuple[IntArray, FloatArray]:
        """Choose first tokens from the hidden rows of the prompts' last positions."""
        start_s = self._start()
        if not coda_has_run:
            ones = np.ones_like(residents)
            hidden = self.model.coda(
                hidden, LaunchContext(ones, ones, self.device, None, NO_ROWS, None)
            )
        result = self._choose(residents, self.model.head(hidden))
        self._launched(Stage.CODA, start_s, prefill_rows=residents.size)
        return result

    # What launches share.

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _decode_context(self, stage: Stage, residents: IntArray, loops: IntArray) -> LaunchContext:
        positions = self.residents.position[residents]
        cache = self.cache.stages.get(stage)
        if cache is None:
            return LaunchContext(positions, loops, self.device, None, NO_ROWS, None)
        rows = cache.write_rows(residents, positions, loops)
        slots = np.minimum(loops, cache.slots) - 1
        plan = SdpaPlan(cache, residents, slots, positions, [], self.dtype)
        return LaunchContext(positions, loops, self.device, cache, rows, plan)

    def _prefill_context(self, stage: Stage, segments: list[Segment], loop: int) -> LaunchContext:
        residents, positions = segment_positions(segments)
        loops = np.full_like(positions, loop)
        cache = self.cache.stages.get(stage)
        if cache is None:
            return LaunchContext(positions, loops, self.device, None, NO_ROWS, None)
        rows = cache.write_rows(residents, positions, loops)
        slot = min(loop, cache.slots) - 1
        reading = [Segment(s.resident, slot, s.start, s.length) for s in segments]
        plan = SdpaPlan(cache, NO_ROWS, NO_ROWS, NO_ROWS, reading, self.dtype)
        return LaunchContext(positions, loops, self.device, cache, rows, plan)

    def _tests(self, residents: IntArray, needs: Needs, evidence: Tensor) -> BoolArray:
        """Signals and tests of the rules of one kind; False for rows under another kind of rule."""
        res = self.residents
        met = np.zeros(residents.size, np.bool_)
        if needs is Needs.LOGITS and not res.any_reads_out:
            return met
        for rule, mask in res.uses(residents):
            if rule.needs is not needs:
                continue
            who = residents if mask is None else residents[mask]
            seen = evidence if mask is None else evidence[self._tensor(mask)]
            where = self._tensor(who)
            memory = res.memory.index_select(0, where)
            if needs is Needs.GATE:
                seen = self.model.exit_logit(seen)
            signal = rule.signal(seen, memory[:, : rule.memory_values])
            if rule.memory_values:
                res.memory.index_copy_(0, where, memory)
            tests = rule.met(signal.double(), res.threshold.index_select(0, where)).cpu().numpy()
            met[mask if mask is not None else slice(None)] = tests
        return met

    def _choose(self, residents: IntArray, logits: Tensor) -> tuple[IntArray, FloatArray]:
        """The next token of each resident and its raw logprob, on the host."""
        res = self.residents
        tokens = logits.argmax(-1)
        drawn = res.temperature[residents] > 0
        if np.count_nonzero(drawn):
            rows = self._tensor(np.flatnonzero(drawn))
            tokens[rows] = self._draw(residents[drawn], logits[rows])
        forced = res.forced[residents, res.outputs.count[residents]]
        if np.count_nonzero(forced != NOT_FORCED):
            wanted = self._tensor(forced)
            tokens = torch.where(wanted == NOT_FORCED, tokens, wanted)
        logprobs = logprobs_of(logits, tokens)
        return tokens.cpu().numpy(), logprobs.double().cpu().numpy()

    def _draw(self, residents: IntArray, logits: Tensor) -> Tensor:
        res = self.residents
        numbers = uniform(res.stream[residents], res.outputs.count[residents])
        return draw(
            logits,
            self._tensor(res.temperature[residents]),
            self._tensor(res.top_k[residents]),
            self._tensor(res.top_p[residents]),
            self._tensor(numbers),
        )

    def _start(self) -> float:
        return 0.0 if self.observer is None else self.clock.now()

    def _launched(
        self,
        stage: Stage,
        start_s: float,
        decode_rows: int = 0,
        prefill_rows: int = 0,
        loops: IntArray | None = None,
    ) -> None:
        """Tell the observer of a launch that began at ``start_s`` and ends here."""
        if self.observer is None:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        took_s = self.clock.now() - start_s
        record = LaunchRecord(
            stage, decode_rows, prefill_rows, loops, self.runnable, start_s, took_s
        )
        self.observer.launched(record)


def signal_dtype(model: StagedModel) -> torch.dtype:
    """The precision exit signals are kept in: float32, or float64 for a float64 model."""
    return at_least_float32(torch.empty(0, dtype=model.dtype)).dtype
