"""What a gate is fitted on: a model's own text, with every later token's states and signals.

The workload runs live under its rule at lag 0 with a floor of at least 2, the earliest depth that a
gate can call (there is no such floor where a pre-loop gate is to be fitted), so that tokens leave
behind the keys and values that they will under the gate. Ghost loops (``runtime/ghost.py``) go on
beyond each exit: at every loop there is a state and a signal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from cdbench import manifest
from cdbench.bench.equal import RecordedRequest, record
from cdbench.bench.measurements import Progress
from cdbench.bench.plan import Plan
from cdbench.bench.record import check_record, marks_of
from cdbench.bench.rows import exit_settings
from cdbench.bench.workload import TimedWork
from cdbench.errors import RequestRefused, UsageError
from cdbench.grammar import Mode
from cdbench.models.base import StagedModel, dtype_name
from cdbench.runtime.core import ExitPolicy, FloatArray, IntArray, RequestResult
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_checks import check_looks_ahead
from cdbench.runtime.ghost import GhostEngine
from cdbench.runtime.lookahead import FIRST_CALLED, FIRST_LOOP, LEAST_LOOPS
from cdbench.runtime.results import Detokenize
from cdbench.schema import WorkloadRecord
from cdbench.schema.lookahead import GateSetting, StateRecording
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.identity import workload_hash

States = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Recorded:
    """A recording in memory: states ``[N, R − 1, D]``, signals ``[N, R]``, lines by request.

    ``preludes`` ``[N, D]``: what the prelude gave, where a pre-loop gate can be fitted on it.
    """

    document: StateRecording
    states: States
    signals: FloatArray
    offsets: IntArray
    preludes: States | None = None

    @property
    def request_of(self) -> IntArray:
        """``[N]``: the place of the request that each later token belongs to."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))


class StateEngine(GhostEngine):
    """A ghost engine that also keeps, of every later token, the state after each loop but the last.

    With ``preludes`` also what the prelude gave. All of it is given out, and forgotten, as a
    request's result is taken.
    """

    def __init__(
        self,
        model: StagedModel,
        config: EngineConfig,
        detokenize: Detokenize | None = None,
        preludes: bool = False,
    ) -> None:
        super().__init__(model, config, detokenize=detokenize)
        self._states: dict[str, States] = {}
        self._preludes: dict[str, States] = {}
        self.watch_signals(self._saw)
        if preludes:
            self.runner.tests.watch_prelude = self._saw_prelude

    def take_states(self, result: RequestResult) -> States:
        """``[later tokens, R − 1, D]`` of a finished request."""
        held = self._states.pop(result.id, None)
        later = max(0, len(result.tokens) - 1)
        if held is None:
            shape = (later, self.max_loops - 1, self.model.dims.hidden_size)
            return np.zeros(shape, np.float32)
        return held[1 : later + 1].copy()

    def take_preludes(self, result: RequestResult) -> States:
        """``[later tokens, D]`` of a finished request."""
        held = self._preludes.pop(result.id, None)
        later = max(0, len(result.tokens) - 1)
        if held is None:
            return np.zeros((later, self.model.dims.hidden_size), np.float32)
        return held[1 : later + 1].copy()

    def _saw_prelude(self, residents: IntArray, prelude_TD: Tensor) -> None:
        res = self.residents
        tokens, values = res.outputs.count[residents], prelude_TD.float().cpu().numpy()
        for r, token, value in zip(residents.tolist(), tokens.tolist(), values, strict=True):
            request = res.request(r)
            held = self._preludes.get(request.id)
            if held is None:
                shape = (request.new_tokens, value.size)
                held = self._preludes[request.id] = np.zeros(shape, np.float32)
            held[token] = value

    def _saw(self, residents: IntArray, signal_T: Tensor) -> None:
        self.signals.saw(residents, signal_T)
        res = self.residents
        # The loop is counted once its launch has ended: until then it is the place of its state.
        places, tokens = res.loop[residents], res.outputs.count[residents]
        states = self.runner.carried.state[self.runner.tensor(residents)].float().cpu().numpy()
        for i in np.flatnonzero((tokens > 0) & (places < self.max_loops - 1)):
            request = res.request(int(residents[i]))
            held = self._states.get(request.id)
            if held is None:
                shape = (request.new_tokens, self.max_loops - 1, states.shape[1])
                held = self._states[request.id] = np.zeros(shape, np.float32)
            held[tokens[i], places[i]] = states[i]


def check_recordable(plan: Plan, work: TimedWork, pre_loop: bool = False) -> None:
    """Raise UsageError, before anything runs, where no gate could be fitted on this."""
    check_record(plan, work, None)
    check_looks_ahead(plan.policy.rule)
    if plan.policy.lag:
        raise UsageError(
            "exit.lag: a gate is fitted on decisions at lag 0; drop it (the gate runs at lag 1)"
        )
    if plan.max_loops < LEAST_LOOPS:
        raise UsageError(
            f"{plan.model.name}: runs {plan.max_loops} loops; below {LEAST_LOOPS} there is no "
            "exit to look ahead for"
        )
    if pre_loop and plan.policy.min_loops > FIRST_LOOP:
        raise UsageError(
            f"exit.min_loops {plan.policy.min_loops}: with this floor no token leaves after loop "
            "1, which is all that a pre-loop gate calls; drop it, or --pre-loop"
        )


def recording_policy(policy: ExitPolicy, earliest: int = FIRST_CALLED) -> ExitPolicy:
    """The rule as it is recorded and compared with: at lag 0, from the earliest depth called on."""
    return replace(policy, lag=0, lookahead=None, min_loops=max(earliest, policy.min_loops))


def record_states(
    plan: Plan, work: TimedWork, progress: Progress, pre_loop: bool = False
) -> Recorded:
    """Run the workload live with ghosts. Raises RequestRefused where a request cannot be served,

    UsageError where none has a later token. ``pre_loop``: so that a pre-loop gate can be fitted.
    """
    policy = recording_policy(plan.policy, FIRST_LOOP if pre_loop else FIRST_CALLED)
    model = manifest.identify(plan.model.name, plan.model.files)
    started = manifest.collect([model], device=str(plan.model.network.device))
    requests = [replace(request, exit=policy, arrival_s=0.0) for request in work.requests]
    progress.phase("recording states", len(requests))
    detokenize = plan.model.decode if plan.model.tokenizer is not None else None
    settings = plan.settings(plan.subject(Mode("cdb")), live=False)
    engine = StateEngine(plan.model.network, settings, detokenize, pre_loop)
    kept: dict[str, _Kept] = {}
    by_id = {request.id: request for request in requests}
    began_s = time.perf_counter()
    for result in engine.run(requests):
        if result.error is not None:
            raise RequestRefused(f"request {result.id!r} {result.error}")
        states, preludes = engine.take_states(result), engine.take_preludes(result)
        made = record(by_id[result.id], result)
        if made is not None and len(made.tokens) > 1:
            signals = engine.signals.of(result)
            kept[result.id] = _Kept(made, states, signals, preludes if pre_loop else None)
        progress.advance(1)
    took_s = time.perf_counter() - began_s
    found = [kept[request.id] for request in requests if request.id in kept]
    if not found:
        raise UsageError("predictor: no request has a later token, so there is nothing to fit on")
    setting = GateSetting(
        model=model,
        weight_seed=plan.model.weight_seed,
        layers=plan.model.layers,
        exit=exit_settings(policy),
        max_loops=plan.max_loops,
        state_size=plan.model.network.dims.hidden_size,
        kv_layout=plan.kv_layout,
        dtype=dtype_name(plan.model.network.dtype),
    )
    requests_made = [one.request for one in found]
    document = StateRecording(
        marks=marks_of(plan),
        notes=list(dict.fromkeys([*plan.notes, *work.notes])),
        setting=setting,
        device=plan.model.network.device.type,
        workload_hash=workload_hash(requests_made, ArrivalSchedule()),
        source=plan.config.workload.source,
        tokens=sum(len(made.tokens) - 1 for made in requests_made),
        pre_loop=pre_loop,
        arrays_sha256="",
        seconds=took_s,
        config=plan.config.model_dump(mode="json"),
        manifest=started,
        requests=[WorkloadRecord.of(made) for made in requests_made],
    )
    return _joined(document, found)


@dataclass(frozen=True)
class _Kept:
    """A finished request with what was seen of its later tokens."""

    request: RecordedRequest
    states: States
    signals: FloatArray
    preludes: States | None


def _joined(document: StateRecording, found: Sequence[_Kept]) -> Recorded:
    offsets = np.cumsum([0, *(len(one.signals) for one in found)], dtype=np.int64)
    preludes = [one.preludes for one in found if one.preludes is not None]
    return Recorded(
        document,
        np.concatenate([one.states for one in found]),
        np.concatenate([one.signals for one in found]),
        offsets,
        np.concatenate(preludes) if preludes else None,
    )
