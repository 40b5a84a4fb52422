"""The runner: carries out launches on the device and times them. It decides nothing.

One launch is one batched forward of one stage, from gathering its rows to having its result (the
exit tests or the tokens) where the host can read it. Everything in between counts as the stage's
time; what the engine does between launches counts as host time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.models.layers import at_least_float32
from cdbench.runtime.attention.plan import AttentionPlan
from cdbench.runtime.attention.sdpa import SdpaPlan, Segment, segment_positions
from cdbench.runtime.core import (
    BoolArray,
    Clock,
    FloatArray,
    IntArray,
    LaunchObserver,
    Stage,
)
from cdbench.runtime.exits import Evidence, Needs
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.residents import FULL_MASS, NOT_FORCED, RULE_LIST, Residents
from cdbench.runtime.sampling import draw, logprobs_of, state_keys, uniform
from cdbench.runtime.stage_cache import StageCache
from cdbench.runtime.timing import Mark, launch_timer

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
        plan: AttentionPlan | None,
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
        return values.index_select(0, torch.from_numpy(self.ends).to(values.device))


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
        self.runnable = 0
        """Requests resident or waiting, set by the engine before each launch."""
        self.watch: Callable[[IntArray, Tensor], None] | None = None
        """Told every signal as it is computed: whose, and the values ``[T]``."""
        self.watch_choice: Callable[[IntArray, Tensor], None] | None = None
        """Told the likeliest tokens ``[T]`` of every readout, before any is drawn or forced."""
        self.calls: BoolArray = np.zeros(0, np.bool_)
        """Whose gates called an exit for the next loop in the last core launch that asked any."""
        shape = (residents.capacity, model.dims.hidden_size)
        self.state = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.injection = torch.zeros_like(self.state) if model.dims.has_injection else None
        self.readout: Tensor | None = None
        if model.dims.readout_values:
            self.readout = self.empty_readout(residents.capacity)

    @property
    def _carried(self) -> list[Tensor]:
        """What residents carry from launch to launch, ``[residents, …]`` each."""
        return [t for t in (self.state, self.injection, self.readout) if t is not None]

    def save(self, resident: int) -> list[Tensor]:
        """Copies, in host memory, of what a resident carries."""
        return [carried[resident].to("cpu", copy=True) for carried in self._carried]

    def restore(self, resident: int, saved: list[Tensor]) -> None:
        for carried, line in zip(self._carried, saved, strict=True):
            carried[resident] = line.to(self.device)

    # Decode launches: one row per resident.

    def prelude(self, residents: IntArray, last_depths: IntArray) -> None:
        """Embed each resident's token in flight and store its state before loop 1.

        The token before it is complete at ``last_depths``: its deeper slots are settled first.
        """
        res = self.residents
        began = self._start()
        before = res.position[residents] - 1
        for cache in self.cache.stages.values():
            cache.settle(residents, before, last_depths)
        ctx = self._decode_context(Stage.PRELUDE, residents, np.ones_like(residents))
        state, injection = self.model.prelude(self.tensor(res.token[residents]), ctx)
        where = self.tensor(residents)
        res.forget(where)
        self.state.index_copy_(0, where, self._initial(residents, res.position[residents], state))
        if self.injection is not None and injection is not None:
            self.injection.index_copy_(0, where, injection)
        if self.readout is not None:
            self.readout.index_fill_(0, where, 0.0)
        self._launched(Stage.PRELUDE, began, self._reach(residents), decode_rows=residents.size)

    def core(self, residents: IntArray) -> BoolArray:
        """Run one more loop for each resident; True where its rule's test is now met."""
        loops = self.residents.loop[residents] + 1
        began = self._start()
        ctx = self._decode_context(Stage.CORE, residents, loops)
        where = self.tensor(residents)
        injection = None
        if self.injection is not None:
            injection = self.injection.index_select(0, where)
        before = self.state.index_select(0, where)
        state = self.model.core(before, injection, ctx)
        met = self._after_loop(residents, loops, where, before, state)
        reach = self._reach(residents)
        self._launched(Stage.CORE, began, reach, decode_rows=residents.size, loops=loops)
        self.residents.loop[residents] = loops
        return met

    def core_with_chunk(
        self, residents: IntArray, chunk: PrefillChunk, loop: int, watch: bool
    ) -> tuple[BoolArray, BoolArray]:
        """``core`` for these residents and ``prefill_core`` for a chunk, in one launch.

        The rows stay independent: decode rows first, each at its own loop, then the chunk's.
        """
        loops = self.residents.loop[residents] + 1
        began = self._start()
        where = self.tensor(residents)
        before, chunk_before = self.state.index_select(0, where), chunk.state
        injection = None
        if self.injection is not None:
            assert chunk.injection is not None
            injection = torch.cat([self.injection.index_select(0, where), chunk.injection])
        ctx = self._mixed_context(residents, loops, chunk.segments, loop)
        both = self.model.core(torch.cat([before, chunk_before]), injection, ctx)
        state, chunk.state = both[: residents.size], both[residents.size :]
        met = self._after_loop(residents, loops, where, before, state)
        chunk_met = self._after_chunk(chunk, chunk_before, watch)
        self._launched(
            Stage.CORE, began, self._reach(residents), residents.size, chunk.ids.size, loops
        )
        self.residents.loop[residents] = loops
        return met, chunk_met

    def _after_loop(
        self, residents: IntArray, loops: IntArray, where: Tensor, before: Tensor, state: Tensor
    ) -> BoolArray:
        """Keep what a loop left of each resident; True where its rule's test is now met."""
        self.state.index_copy_(0, where, state)
        seen: dict[Needs, Evidence] = {Needs.GATE: (state,), Needs.STATES: (state, before)}
        if self.readout is not None:
            halt_at = self.residents.halt_at.index_select(0, where)
            gathered = self.model.absorb(state, self.readout.index_select(0, where), halt_at)
            self.readout.index_copy_(0, where, gathered)
            seen[Needs.HALTING] = (gathered[:, 0],)
        return self._look(residents, loops, state, seen)

    def coda(
        self, residents: IntArray, prefill: bool = False
    ) -> tuple[IntArray, FloatArray, BoolArray]:
        """Read out the residents' states: next tokens, their logprobs, and tests on the readout.

        ``prefill`` says that they stand at the last position of their prompts.
        """
        began = self._start()
        ctx = self._decode_context(Stage.CODA, residents, np.ones_like(residents))
        where = self.tensor(residents)
        state = self.state.index_select(0, where)
        if self.readout is not None:
            state = self.model.readout(state, self.readout.index_select(0, where))
        logits = self.model.head(self.model.coda(state, ctx))
        tokens, logprobs = self._choose(residents, logits)
        met = self._tests(residents, {Needs.LOGITS: (logits,)})
        rows = residents.size
        reach = self._reach(residents)
        self._launched(Stage.CODA, began, reach, 0 if prefill else rows, rows if prefill else 0)
        return tokens, logprobs, met

    # Prefill launches: consecutive prompt tokens, packed without padding.

    def prefill_prelude(self, chunk: PrefillChunk, select_first: bool = False) -> None:
        """Embed a chunk of prompt tokens: its state before loop 1."""
        began = self._start()
        ctx = self._prefill_context(Stage.PRELUDE, chunk.segments, 1)
        chunk.state, chunk.injection = self.model.prelude(self.tensor(chunk.ids), ctx)
        if self.random_state:
            chunk.state = self._initial(*segment_positions(chunk.segments), chunk.state)
        if self.readout is not None:
            chunk.readout = self.empty_readout(chunk.ids.size)
            chunk.halt_at = torch.full((chunk.ids.size,), FULL_MASS, device=self.device).double()
            if select_first:
                own = self.residents.halt_at.index_select(0, self.tensor(chunk.residents))
                chunk.halt_at.index_copy_(0, self.tensor(chunk.ends), own)
        self._launched(Stage.PRELUDE, began, chunk.reach, prefill_rows=chunk.ids.size)

    def prefill_core(self, chunk: PrefillChunk, loop: int, watch: bool) -> BoolArray:
        """One loop over a chunk; with ``watch``, the tests at the prompts that end in it."""
        began = self._start()
        before = chunk.state
        ctx = self._prefill_context(Stage.CORE, chunk.segments, loop)
        chunk.state = self.model.core(before, chunk.injection, ctx)
        met = self._after_chunk(chunk, before, watch)
        self._launched(Stage.CORE, began, chunk.reach, prefill_rows=chunk.ids.size)
        return met

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
        return self._tests(chunk.residents, seen)

    def prefill_coda(self, chunk: PrefillChunk) -> bool:
        """Run the coda's layers over prompt tokens, for their keys; False where it has none."""
        began = self._start()
        if chunk.readout is not None:
            chunk.state = self.model.readout(chunk.state, chunk.readout)
        if not self.model.dims.coda_layers:
            return False
        ctx = self._prefill_context(Stage.CODA, chunk.segments, 1)
        chunk.state = self.model.coda(chunk.state, ctx)
        self._launched(Stage.CODA, began, chunk.reach, prefill_rows=chunk.ids.size)
        return True

    def first_tokens(self, residents: IntArray, hidden: Tensor) -> tuple[IntArray, FloatArray]:
        """Choose first tokens from the rows of the prompts' last positions.

        Where the coda has layers, they have run over the prompts already.
        """
        began = self._start()
        if not self.model.dims.coda_layers:
            ones = np.ones_like(residents)
            hidden = self.model.coda(
                hidden, LaunchContext(ones, ones, self.device, None, NO_ROWS, None)
            )
        result = self._choose(residents, self.model.head(hidden))
        self._launched(Stage.CODA, began, self._reach(residents), prefill_rows=residents.size)
        return result

    # What launches share.

    def empty_readout(self, rows: int) -> Tensor:
        """``[rows, M]`` zeros: what a readout has gathered before loop 1."""
        values = self.model.dims.readout_values
        return torch.zeros((rows, values), dtype=self.residents.signal_dtype, device=self.device)

    def _initial(self, residents: IntArray, positions: IntArray, state: Tensor) -> Tensor:
        """The state before loop 1: the prelude's, or drawn anew for each token."""
        if not self.random_state:
            return state
        keys = state_keys(self.residents.stream[residents], positions)
        return self.model.random_state(self.tensor(keys)).to(self.dtype)

    def tensor(self, array: np.ndarray) -> Tensor:
        """A host array on the device."""
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
        rows = cache.prompt_rows(residents, positions, loop)
        plan = SdpaPlan(cache, NO_ROWS, NO_ROWS, NO_ROWS, segments, self.dtype, loop)
        return LaunchContext(positions, loops, self.device, cache, rows, plan)

    def _mixed_context(
        self, residents: IntArray, loops: IntArray, segments: list[Segment], loop: int
    ) -> LaunchContext:
        """Decode rows at their own loops, then prompt tokens at ``loop``, in a core launch."""
        cache = self.cache.stages[Stage.CORE]
        positions = self.residents.position[residents]
        prompts, prompt_positions = segment_positions(segments)
        slots = np.minimum(loops, cache.slots) - 1
        rows = np.concatenate(
            [
                cache.write_rows(residents, positions, loops),
                cache.prompt_rows(prompts, prompt_positions, loop),
            ]
        )
        plan = SdpaPlan(cache, residents, slots, positions, segments, self.dtype, loop)
        return LaunchContext(
            np.concatenate([positions, prompt_positions]),
            np.concatenate([loops, np.full_like(prompt_positions, loop)]),
            self.device,
            cache,
            rows,
            plan,
        )

    def _look(
        self, residents: IntArray, loops: IntArray, state: Tensor, seen: dict[Needs, Evidence]
    ) -> BoolArray:
        """The tests after a loop; where any request has a gate, also what the gates call next."""
        if not self.residents.foresight.any:
            return self._tests(residents, seen)
        signals_T = torch.full(
            (residents.size,), torch.nan, dtype=self.residents.signal_dtype, device=self.device
        )
        met = self._tests(residents, seen, signals_T)
        self.calls = self.residents.foresight.calls(residents, loops, state, signals_T)
        return met

    def _tests(
        self,
        residents: IntArray,
        seen: dict[Needs, Evidence],
        signals_T: Tensor | None = None,
    ) -> BoolArray:
        """Signals and tests of the rules whose evidence this launch has; False for other rows.

        The signals are put into ``signals_T`` where it is given.
        """
        res = self.residents
        met = np.zeros(residents.size, np.bool_)
        if Needs.LOGITS in seen and not res.any_reads_out:
            return met
        for index, mask in res.uses(residents):
            rule = RULE_LIST[index]
            if rule.needs not in seen:
                continue
            evidence, where = seen[rule.needs], self.tensor(residents)
            if mask is not None:
                rows = self.tensor(np.flatnonzero(mask))
                evidence = tuple(x.index_select(0, rows) for x in evidence)
                where = where.index_select(0, rows)
            if rule.needs is Needs.GATE:
                evidence = (self.model.exit_logit(*evidence),)
            signal = self._signal(index, evidence, where)
            if signals_T is not None:
                signals_T[slice(None) if mask is None else rows] = signal
            if self.watch is not None:
                self.watch(residents if mask is None else residents[mask], signal)
            tests = rule.met(signal.double(), res.threshold.index_select(0, where)).cpu().numpy()
            met[mask if mask is not None else slice(None)] = tests
        return met

    def _signal(self, rule: int, evidence: Evidence, where: Tensor) -> Tensor:
        """A rule's signal, with what it remembers of these residents brought up to date."""
        held = self.residents.memories.get(rule)
        if held is None:
            return RULE_LIST[rule].signal(evidence, self.state.new_empty(0))
        memory = held.index_select(0, where)
        signal = RULE_LIST[rule].signal(evidence, memory)
        held.index_copy_(0, where, memory)
        return signal

    def _choose(self, residents: IntArray, logits: Tensor) -> tuple[IntArray, FloatArray]:
        """The next token of each resident and its raw logprob, on the host."""
        res = self.residents
        tokens = logits.argmax(-1)
        if self.watch_choice is not None:
            self.watch_choice(residents, tokens)
        drawn = res.temperature[residents] > 0
        if np.count_nonzero(drawn):
            rows = self.tensor(np.flatnonzero(drawn))
            tokens[rows] = self._draw(residents[drawn], logits[rows])
        forced = res.forced[residents, res.outputs.count[residents]]
        if np.count_nonzero(forced != NOT_FORCED):
            wanted = self.tensor(forced)
            tokens = torch.where(wanted == NOT_FORCED, tokens, wanted)
        logprobs = logprobs_of(logits, tokens)
        return tokens.cpu().numpy(), logprobs.double().cpu().numpy()

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

    def _reach(self, residents: IntArray) -> int:
        """Positions that the longest of these rows attends to."""
        return 0 if self.timer is None else int(self.residents.position[residents].max()) + 1

    def _start(self) -> Mark:
        return 0.0 if self.timer is None else self.timer.start()

    def _launched(
        self,
        stage: Stage,
        began: Mark,
        reach: int,
        decode_rows: int = 0,
        prefill_rows: int = 0,
        loops: IntArray | None = None,
    ) -> None:
        """Tell the observer of a launch that ends here; ``began`` is what ``_start`` gave."""
        if self.timer is not None:
            what = (stage, decode_rows, prefill_rows, loops, reach, self.runnable)
            self.timer.finish(began, what)


def signal_dtype(model: StagedModel) -> torch.dtype:
    """The precision exit signals are kept in: float32, or float64 for a float64 model."""
    return at_least_float32(torch.empty(0, dtype=model.dtype)).dtype
