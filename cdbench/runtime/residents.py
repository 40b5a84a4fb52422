"""The admitted requests as arrays: one line per resident, no object per token.

Everything the hot path touches is a numpy array indexed by resident number, so that routing a
launch is a handful of vector operations whatever its width. Values the device reads at every loop
(thresholds, what exit rules remember) have tensors of their own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import ModelDims, StagedModel
from cdbench.runtime.core import BoolArray, IntArray, Request
from cdbench.runtime.foresight import Foresight
from cdbench.runtime.outputs import Outputs, widened
from cdbench.runtime.readback import put, to_device
from cdbench.runtime.request_lines import (
    FULL_MASS,
    NO_STOP,
    NOT_FORCED,
    write_policy,
    write_sampling,
    write_scripts,
)
from cdbench.runtime.rule_memory import RuleMemory, signal_dtype

LINES = {
    "age": 0,
    "admitted_s": 0,
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
    "host_threshold": 0,
    "host_halt_at": 0,
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
UNASKED = np.iinfo(np.int64).max
"""A depth no token reaches: the rule has not asked for an exit."""


@dataclass(frozen=True, eq=False)
class SavedResident:
    """A resident's lines, outputs and rule memory, kept while it is not resident."""

    request: Request
    lines: dict[str, Any]
    outputs: dict[str, Any]
    memory: Tensor | None
    foresight: dict[str, Any]


class Residents:
    """Per-resident state of admitted requests and of the one token each has in flight.

    Signals are kept in ``signal_dtype``, readouts that a rule remembers in ``logits_dtype``.
    """

    @classmethod
    def of(cls, model: StagedModel, capacity: int, max_loops: int) -> Self:
        """Residents of a model's requests, in its precision."""
        signals = signal_dtype(model)
        return cls(capacity, max_loops, model.dims, model.device, signals, model.dtype)

    def __init__(
        self,
        capacity: int,
        max_loops: int,
        dims: ModelDims,
        device: torch.device,
        signal_dtype: torch.dtype,
        logits_dtype: torch.dtype | None = None,
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
        self.host_threshold = np.zeros(capacity)
        self.threshold = torch.from_numpy(self.host_threshold).to(device)
        self.host_halt_at = np.full(capacity, FULL_MASS)
        self.halt_at = torch.from_numpy(self.host_halt_at).to(device)
        self.memories = RuleMemory(
            capacity, dims, device, signal_dtype, logits_dtype or signal_dtype
        )
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
        write_policy(self, r, request.exit)
        write_sampling(self, r, request)
        write_scripts(self, r, request)
        self.outputs.count[r] = 0
        return r

    def save(self, r: int) -> SavedResident:
        """Copy a resident's lines and free its number."""
        saved = SavedResident(
            self.request(r),
            {name: getattr(self, name)[r].copy() for name in LINES},
            self.outputs.save(r),
            self.memories.save(r, int(self.rule[r])),
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
        self.outputs.restore(r, saved.outputs)
        self.memories.restore(r, int(self.rule[r]), saved.memory)
        self.foresight.restore(r, saved.foresight)
        self.upload()
        return r

    def upload(self) -> None:
        """Bring what admission wrote to the device, once for all that were admitted together."""
        if self.device.type != "cpu":
            put(self.threshold, self.host_threshold)
            put(self.halt_at, self.host_halt_at)

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
        self.memories.forget(to_device(residents, self.device))

    def decide(self, residents: IntArray, met: BoolArray) -> BoolArray:
        """Record the tests on a signal after the current loop, and say who has now exited."""
        self.record(residents, self.loop[residents], met)
        return self.exited(residents)

    def exited(self, residents: IntArray) -> BoolArray:
        """Whose token leaves after the loop it has just run, by what is recorded of it so far."""
        exited: BoolArray = self.loop[residents] >= self.exit_at[residents]
        return exited

    def record(self, residents: IntArray, loops: IntArray, met: BoolArray) -> None:
        """Record the tests on the signals after ``loops``, which may be known a loop later.

        With lag L a decision may be taken at loop k where k + L reaches the floor on the executed
        depth; what the rule would execute at lag 0 is recorded beside it.
        """
        if np.count_nonzero(met):
            self._record_met(residents[met], loops[met])

    def _record_met(self, residents: IntArray, loops: IntArray) -> None:
        # At lag 0 without a floor the rule asks for this loop and the token leaves after it.
        asked = leaves = loops
        if self.any_delay:
            floor, leaves = self.min_loops[residents], asked + self.lag[residents]
            asked = np.where(asked >= floor, asked, UNASKED)
            leaves = np.where(leaves >= floor, leaves, UNASKED)
        self.requested[residents] = np.minimum(self.requested[residents], asked)
        # A scripted token goes on as its script has it.
        leaves = np.where(self.is_scripted[residents], UNASKED, leaves)
        self.exit_at[residents] = np.minimum(self.exit_at[residents], leaves)

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

    def _hold_tokens(self, tokens: int) -> None:
        have = self.forced.shape[1]
        if tokens <= have:
            return
        width = max(tokens, 2 * have)
        self.forced = widened(self.forced, width, NOT_FORCED)
        self.scripted_depth = widened(self.scripted_depth, width, 0)
        self.outputs.hold(width)
