"""The admitted requests as arrays: one line per resident, no object per token.

Everything the hot path touches is a numpy array indexed by resident number, so that routing a
launch is a handful of vector operations whatever its width. Values the device reads at every loop
(thresholds, what exit rules remember) have tensors of their own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.models.base import ModelDims
from cdbench.runtime.core import BoolArray, ExitPolicy, FloatArray, IntArray, Request
from cdbench.runtime.exits import RULES, ExitRule, Needs
from cdbench.runtime.lookahead import FIRST_CALLED, Foresight
from cdbench.runtime.sampling import stream_key

NOT_FORCED = -1
NO_STOP = -1
LINES = {
    "age": 0,
    "admitted_s": 0,
    "token": 0,
    "position": 0,
    "loop": 0,
    "exit_at": 0,
    "requested": 0,
    "is_scripted": 0,
    "rule": 0,
    "reads_out": 0,
    "lag": 0,
    "min_loops": 0,
    "limit": 0,
    "_threshold": 0,
    "_halt_at": 0,
    "temperature": 0,
    "top_k": 0,
    "top_p": 0,
    "stream": 0,
    "has_stop_strings": 0,
    "stop_ids": NO_STOP,
    "forced": NOT_FORCED,
    "scripted_depth": 0,
}
"""The arrays with a line per resident, and what pads a line of those that can widen."""
OUTPUTS = ("tokens", "executed", "requested", "logprobs", "token_s", "predicted")
UNASKED = np.iinfo(np.int64).max
"""A depth no token reaches: the rule has not asked for an exit."""
RULE_LIST: list[ExitRule] = list(RULES.values())
RULE_INDEX = {rule.name: i for i, rule in enumerate(RULE_LIST)}
FULL_MASS = 1.0
"""Halting mass at which a readout is complete, but under rule ``act``, whose threshold it is."""


@dataclass(frozen=True, eq=False)
class SavedResident:
    """A resident's lines, outputs and rule memory, kept while it is not resident."""

    request: Request
    lines: dict[str, Any]
    outputs: dict[str, Any]
    memory: Tensor | None
    foresight: dict[str, Any]


@dataclass
class Outputs:
    """What each resident has produced, ``[residents, tokens]``; ``count`` entries are filled.

    ``predicted`` has the depths that lookahead gates called, 0 where none was asked.
    """

    count: IntArray
    tokens: IntArray
    executed: IntArray
    requested: IntArray
    logprobs: FloatArray
    token_s: FloatArray
    predicted: IntArray

    @staticmethod
    def empty(residents: int, tokens: int) -> Outputs:
        shape = (residents, tokens)
        return Outputs(
            np.zeros(residents, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float64),
            np.zeros(shape, np.float64),
            np.zeros(shape, np.int64),
        )

    def append(
        self,
        residents: IntArray,
        tokens: IntArray,
        executed: IntArray,
        requested: IntArray,
        logprobs: FloatArray,
        now_s: float,
    ) -> None:
        count = self.count[residents]
        at = residents * self.tokens.shape[1] + count
        self.tokens.reshape(-1)[at] = tokens
        self.executed.reshape(-1)[at] = executed
        self.requested.reshape(-1)[at] = requested
        self.logprobs.reshape(-1)[at] = logprobs
        self.token_s.reshape(-1)[at] = now_s
        self.count[residents] = count + 1


class Residents:
    """Per-resident state of admitted requests and of the one token each has in flight."""

    def __init__(
        self,
        capacity: int,
        max_loops: int,
        dims: ModelDims,
        device: torch.device,
        signal_dtype: torch.dtype,
    ) -> None:
        self.capacity = capacity
        self.max_loops = max_loops
        self.dims = dims
        self.device = device
        self.signal_dtype = signal_dtype
        self.requests: list[Request | None] = [None] * capacity
        self.admitted_s = np.zeros(capacity)
        self.age = np.zeros(capacity, np.int64)
        """Order of admission: the oldest has the smallest. Kept while a request is away."""
        self._admissions = 0
        # The token in flight.
        self.token = np.zeros(capacity, np.int64)
        self.position = np.zeros(capacity, np.int64)
        self.loop = np.zeros(capacity, np.int64)
        self.exit_at = np.zeros(capacity, np.int64)
        self.requested = np.zeros(capacity, np.int64)
        self.is_scripted = np.zeros(capacity, np.bool_)
        # The request's policy.
        self.rule = np.zeros(capacity, np.int64)
        self.reads_out = np.zeros(capacity, np.bool_)
        self.lag = np.zeros(capacity, np.int64)
        self.min_loops = np.ones(capacity, np.int64)
        self.limit = np.zeros(capacity, np.int64)
        self._threshold = np.zeros(capacity)
        self.threshold = torch.from_numpy(self._threshold).to(device)
        self._halt_at = np.full(capacity, FULL_MASS)
        self.halt_at = torch.from_numpy(self._halt_at).to(device)
        self.memories: dict[int, Tensor] = {}
        """By rule index, what it remembers of each resident; made when a rule first comes."""
        self._memory_starts: dict[int, Tensor] = {}
        self.foresight = Foresight(capacity, max_loops)
        # Sampling and stopping.
        self.temperature = np.zeros(capacity)
        self.top_k = np.zeros(capacity, np.int64)
        self.top_p = np.ones(capacity)
        self.stream = np.zeros(capacity, np.uint64)
        self.has_stop_strings = np.zeros(capacity, np.bool_)
        self.stop_ids = np.full((capacity, 1), NO_STOP, np.int64)
        self.any_stop_ids = self.any_stop_strings = self.any_reads_out = self.any_delay = False
        """Whether any request so far had one: where none has, no token need be checked."""
        # Per-token scripts, aligned with the outputs: forced tokens, and fixed or replayed depths
        # (0: live).
        self.forced = np.full((capacity, 1), NOT_FORCED, np.int64)
        self.scripted_depth = np.zeros((capacity, 1), np.int64)
        self.outputs = Outputs.empty(capacity, 1)
        self._free = list(range(capacity))

    @property
    def free_count(self) -> int:
        return len(self._free)

    @property
    def occupied(self) -> IntArray:
        """The numbers in use, in order."""
        taken = [r for r, request in enumerate(self.requests) if request is not None]
        return np.array(taken, dtype=np.int64)

    @property
    def occupied_count(self) -> int:
        return self.capacity - len(self._free)

    def admit(self, request: Request, now_s: float) -> int:
        """Give a request the lowest free resident number and fill in its lines."""
        r = heapq.heappop(self._free)
        self.requests[r] = request
        self.admitted_s[r] = now_s
        self._admissions += 1
        self.age[r] = self._admissions
        self.limit[r] = request.new_tokens
        self._hold_tokens(int(self.limit[r]))
        self._set_policy(r, request.exit)
        self._set_sampling(r, request)
        self._set_scripts(r, request)
        self.outputs.count[r] = 0
        return r

    def save(self, r: int) -> SavedResident:
        """Copy a resident's lines and free its number."""
        memory = self.memories.get(int(self.rule[r]))
        count = int(self.outputs.count[r])
        saved = SavedResident(
            self.request(r),
            {name: getattr(self, name)[r].copy() for name in LINES},
            {name: getattr(self.outputs, name)[r, :count].copy() for name in OUTPUTS},
            None if memory is None else memory[r].to("cpu", copy=True),
            self.foresight.save(r),
        )
        self.free(r)
        return saved

    def restore(self, saved: SavedResident) -> int:
        """Make a saved request resident again, under whatever number is free."""
        r = heapq.heappop(self._free)
        self.requests[r] = saved.request
        self._hold_tokens(int(saved.lines["limit"]))
        for name, value in saved.lines.items():
            array = getattr(self, name)
            if array.ndim > 1:
                array[r] = LINES[name]
                array[r, : value.size] = value
            else:
                array[r] = value
        for name, values in saved.outputs.items():
            getattr(self.outputs, name)[r, : values.size] = values
        self.outputs.count[r] = saved.outputs["tokens"].size
        if saved.memory is not None:
            self.memories[int(self.rule[r])][r] = saved.memory.to(self.device)
        self.foresight.restore(r, saved.foresight)
        self.upload()
        return r

    def upload(self) -> None:
        """Bring what admission wrote to the device, once for all that were admitted together."""
        if self.device.type != "cpu":
            self.threshold.copy_(torch.from_numpy(self._threshold))
            self.halt_at.copy_(torch.from_numpy(self._halt_at))

    def free(self, resident: int) -> None:
        self.requests[resident] = None
        heapq.heappush(self._free, resident)

    def request(self, resident: int) -> Request:
        request = self.requests[resident]
        assert request is not None, f"resident {resident} holds no request"
        return request

    def find(self, request_id: str) -> int | None:
        """The resident that holds the request of this id."""
        for r, request in enumerate(self.requests):
            if request is not None and request.id == request_id:
                return r
        return None

    def start_token(self, residents: IntArray) -> None:
        """Reset what belongs to a token, before its loop 1."""
        at = residents * self.scripted_depth.shape[1] + self.outputs.count[residents]
        scripted = self.scripted_depth.reshape(-1)[at]
        self.loop[residents] = 0
        self.requested[residents] = UNASKED
        self.is_scripted[residents] = scripted > 0
        self.exit_at[residents] = np.where(scripted > 0, scripted, self.max_loops)
        if self.foresight.any:
            self.foresight.start_tokens(residents)

    def begin_first_tokens(self, residents: IntArray) -> None:
        """The same for the tokens read from the prompts' last positions."""
        for r in residents:
            self.position[r] = len(self.request(int(r)).prompt) - 1
        self.start_token(residents)
        self.forget(torch.from_numpy(residents).to(self.device))

    def forget(self, residents_T: Tensor) -> None:
        """Reset what exit rules remember of these residents, on the device, before loop 1."""
        for index, memory in self.memories.items():
            memory[residents_T] = self._memory_starts[index]

    def decide(self, residents: IntArray, met: BoolArray) -> BoolArray:
        """Record the tests on a signal after the current loop, and say who has now exited.

        With lag L a decision may be taken at loop k where k + L reaches the floor on the executed
        depth; what the rule would execute at lag 0 is recorded beside it.
        """
        if np.count_nonzero(met):
            self._record_met(residents[met])
        exited: BoolArray = self.loop[residents] >= self.exit_at[residents]
        return exited

    def _record_met(self, residents: IntArray) -> None:
        # At lag 0 without a floor the rule asks for this loop and the token leaves after it.
        asked = leaves = self.loop[residents]
        if self.any_delay:
            floor, leaves = self.min_loops[residents], asked + self.lag[residents]
            asked = np.where(asked >= floor, asked, UNASKED)
            leaves = np.where(leaves >= floor, leaves, UNASKED)
        self.requested[residents] = np.minimum(self.requested[residents], asked)
        # A scripted token goes on as its script has it.
        leaves = np.where(self.is_scripted[residents], UNASKED, leaves)
        self.exit_at[residents] = np.minimum(self.exit_at[residents], leaves)

    def look_ahead(self, residents: IntArray, calls: BoolArray) -> None:
        """Take the gates' calls for the next loop, once the tests after this one are recorded.

        A call counts where the next loop reaches the floor and the rule has not asked by itself,
        at a depth that a gate could have called.
        """
        foresight, loop = self.foresight, self.loop[residents]
        asked = self.requested[residents] <= loop
        foresight.settle(residents, loop, asked)
        late = asked & (loop >= FIRST_CALLED)
        calls = calls & ~late & (loop + 1 >= self.min_loops[residents])
        called = residents[calls]
        if called.size:
            depth = loop[calls] + 1
            foresight.called[called] = depth
            leaves = np.where(self.is_scripted[called], UNASKED, depth)
            self.exit_at[called] = np.minimum(self.exit_at[called], leaves)

    def keep_predictions(self, residents: IntArray) -> None:
        """Keep, beside the last outputs, what gates called for the tokens that led to them."""
        out = self.outputs
        out.predicted[residents, out.count[residents] - 1] = self.foresight.predicted(residents)

    def hits_stop_id(self, residents: IntArray, tokens: IntArray) -> BoolArray:
        """Where a resident's new token is one of its stop ids."""
        if not self.any_stop_ids:
            return np.zeros(residents.size, np.bool_)
        hits: BoolArray = (self.stop_ids[residents] == tokens[:, None]).any(1)
        return hits

    def requested_depths(self, residents: IntArray) -> IntArray:
        """Depth asked for at lag 0, from this run's signals; executed where none was satisfied.

        Where a gate ended a token early, one loop more than executed, or as many as R has.
        """
        requested, loop = self.requested[residents], self.loop[residents]
        if self.foresight.any:
            return self.foresight.asked_depths(residents, loop, requested)
        depths: IntArray = np.minimum(requested, loop)
        return depths

    def uses(self, residents: IntArray) -> list[tuple[int, BoolArray | None]]:
        """The rules among these residents, by index, each with its mask (None: all of them)."""
        rules = self.rule[residents]
        if np.count_nonzero(rules == rules[0]) == rules.size:
            return [(int(rules[0]), None)]
        return [(int(i), rules == i) for i in np.unique(rules)]

    def _set_policy(self, r: int, policy: ExitPolicy) -> None:
        rule = RULES[policy.rule]
        self.rule[r] = RULE_INDEX[policy.rule]
        self.reads_out[r] = rule.needs is Needs.LOGITS
        self.any_reads_out |= rule.needs is Needs.LOGITS
        self.lag[r] = policy.lag
        self.min_loops[r] = policy.min_loops
        self.any_delay |= policy.lag > 0 or policy.min_loops > 1
        self._threshold[r] = policy.threshold if policy.threshold is not None else 0.0
        self._halt_at[r] = FULL_MASS
        if rule.needs is Needs.HALTING and policy.threshold is not None:
            self._halt_at[r] = policy.threshold
        self._remember(int(self.rule[r]), rule)
        self.foresight.admit(r, policy.lookahead)

    def _remember(self, index: int, rule: ExitRule) -> None:
        """Make room for what a rule remembers, the first time that one of its requests comes."""
        start = rule.memory_start(self.dims).to(self.device, self.signal_dtype)
        if start.numel() and index not in self.memories:
            self._memory_starts[index] = start
            self.memories[index] = start.repeat(self.capacity, 1)

    def _set_sampling(self, r: int, request: Request) -> None:
        params = request.sampling
        self.temperature[r], self.top_k[r], self.top_p[r] = (
            params.temperature,
            params.top_k,
            params.top_p,
        )
        self.stream[r] = stream_key(request.id, params.seed)
        stops = set() if request.ignore_eos or request.force is not None else request.stop_ids
        self.has_stop_strings[r] = bool(request.stop_strings) and request.force is None
        if len(stops) > self.stop_ids.shape[1]:
            self.stop_ids = _widened(self.stop_ids, len(stops), NO_STOP)
        self.stop_ids[r] = NO_STOP
        self.stop_ids[r, : len(stops)] = sorted(stops)
        self.any_stop_ids |= bool(stops)
        self.any_stop_strings |= bool(self.has_stop_strings[r])

    def _set_scripts(self, r: int, request: Request) -> None:
        self.forced[r] = NOT_FORCED
        self.scripted_depth[r] = 0
        if request.force is not None:
            self.forced[r, : len(request.force)] = request.force
        if request.replay_depths is not None:
            self.scripted_depth[r, : len(request.replay_depths)] = request.replay_depths
        elif request.exit.rule == "fixed":
            self.scripted_depth[r] = max(request.exit.depth or 0, request.exit.min_loops)

    def _hold_tokens(self, tokens: int) -> None:
        have = self.forced.shape[1]
        if tokens <= have:
            return
        width = max(tokens, 2 * have)
        self.forced = _widened(self.forced, width, NOT_FORCED)
        self.scripted_depth = _widened(self.scripted_depth, width, 0)
        out = self.outputs
        for name in OUTPUTS:
            setattr(out, name, _widened(getattr(out, name), width, 0))


def _widened(array: npt.NDArray[Any], width: int, fill: int) -> npt.NDArray[Any]:
    wider = np.full((array.shape[0], width), fill, array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
