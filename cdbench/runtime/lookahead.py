"""Looking one loop ahead: a small gate whose late decisions are on time, and who watches it.

With exit lag 1 a plain rule ends every token one loop late. A gate that has seen the state after
loop k *calls* an exit where it expects the rule to be met at loop k + 1, so that the late decision
ends the token after that very loop; the earliest exit is depth 2. The rule's own signal is computed
all the same and known one loop later: it ends, still one loop late, what the gate has missed, and
says which calls were right.

Every request is watched by its own calls alone. Once their recent precision falls below a floor,
the request goes on with the plain rule at lag 1, which only ever loops more. No other request, no
launch and no clock enter, so the schedule still changes nothing.

Letters: T rows of a launch, D hidden size, K loops at which a gate may call, F = D + 1 inputs, H
hidden units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cdbench.runtime.core import BoolArray, IntArray

GateKind = Literal["linear", "mlp"]

FIRST_CALLED = 2
"""The earliest depth that a gate on the state after a loop can call."""
LEAST_LOOPS = 3
"""R below which no exit can be called: the last loop ends every token by itself."""
MOST_CLOSENESS = 1e6
"""Signals are held to at least its inverse, and at most itself, before their logarithm is taken."""

WINDOW_CALLS = 32
LEAST_CALLS = 8
PRECISION_FLOOR = 0.6
"""Defaults of ``Watch``. Were calls independent, a gate that is right in nine of ten would be given
up in 1 % of requests of 60 calls; one that is right in half of them in nearly all, most of them
after their first 8."""

NO_GATE = -1


@dataclass(frozen=True)
class Watch:
    """When a request stops trusting its gate.

    After each call whose outcome is known: at least ``least_calls`` of its last ``window`` calls
    must be known, and the share that was right below ``floor``.
    """

    window: int = WINDOW_CALLS
    floor: float = PRECISION_FLOOR
    least_calls: int = LEAST_CALLS


def closeness(signal_T: Tensor, falls: bool) -> Tensor:
    """How near a rule's signal is to asking for an exit, on a log scale; larger is nearer.

    −log of the signal where it falls to its threshold, −log(1 − signal) where it rises to it: the
    signals of rules that a gate looks ahead for lie in 0 to 1, or at 0 and above.
    """
    left = signal_T if falls else 1 - signal_T
    return -left.clamp(1 / MOST_CLOSENESS, MOST_CLOSENESS).log()


@dataclass(frozen=True, eq=False)
class Gate:
    """The weights of a gate, and its score.

    ``linear``: ``weight`` ``[K, F]`` and ``bias`` ``[K]``, a line for each loop. ``mlp``:
    ``hidden`` ``[H, F]`` shared by the loops, ``hidden_bias`` ``[K, H]``, ``out`` ``[H]``, ``bias``
    ``[K]``. Inputs are the state after the loop and the closeness of the rule's signal.
    """

    kind: GateKind
    weights: dict[str, Tensor]
    falls: bool

    @property
    def inputs(self) -> int:
        """F: the state's size and one."""
        return int(self.weights["weight" if self.kind == "linear" else "hidden"].shape[1])

    @property
    def loops(self) -> int:
        """K: it may call at loops 1 to K."""
        return int(self.weights["bias"].shape[0])

    @property
    def flops_per_row(self) -> float:
        """Two FLOPs per weight that a row is multiplied by."""
        if self.kind == "linear":
            return 2.0 * self.inputs
        hidden = int(self.weights["hidden"].shape[0])
        return 2.0 * hidden * (self.inputs + 1)

    def score(self, state_TD: Tensor, signal_T: Tensor, loops_T: Tensor) -> Tensor:
        """The calibrated logit per row ``[T]``, in the precision of the signal.

        A row's score depends on that row alone. NaN among the inputs makes NaN.
        """
        dtype = signal_T.dtype
        x_TF = torch.cat([state_TD.to(dtype), closeness(signal_T, self.falls)[:, None]], dim=-1)
        at_T = loops_T.clamp(max=self.loops) - 1
        weights = {name: w.to(x_TF) for name, w in self.weights.items()}
        if self.kind == "linear":
            return (x_TF * weights["weight"][at_T]).sum(-1) + weights["bias"][at_T]
        hidden_TH = F.silu(x_TF @ weights["hidden"].T + weights["hidden_bias"][at_T])
        return (hidden_TH * weights["out"]).sum(-1) + weights["bias"][at_T]


@dataclass(frozen=True, eq=False)
class Lookahead:
    """A gate with what it was trained for: part of a request's ``ExitPolicy``.

    It calls where its probability is at least ``threshold``. ``rule`` at ``rule_threshold`` is what
    it looks ahead for, over ``max_loops`` loops; ``source`` says where it came from,
    ``sha256`` is of its weights' file.
    """

    gate: Gate
    threshold: float
    rule: str
    rule_threshold: float
    max_loops: int
    source: str = "memory"
    sha256: str | None = None
    watch: Watch = Watch()

    def __str__(self) -> str:
        return f"lookahead:{self.source}@{self.threshold:g}"

    def calls(self, state_TD: Tensor, signal_T: Tensor, loops_T: Tensor) -> Tensor:
        """Whether an exit after the next loop is called, ``[T]`` bool; a NaN calls nothing."""
        score_T = self.gate.score(state_TD, signal_T, loops_T)
        return torch.sigmoid(score_T).double() >= self.threshold


class Foresight:
    """What gates called for each resident's token in flight, and how its request's calls went.

    One line per resident, as everything that the hot path touches.
    """

    def __init__(self, capacity: int, max_loops: int) -> None:
        self.max_loops = max_loops
        self.gates: list[Lookahead] = []
        self.gate = np.full(capacity, NO_GATE, np.int64)
        self.asking = np.zeros(capacity, np.bool_)
        """Whether the token in flight is looked ahead for."""
        self.called = np.zeros(capacity, np.int64)
        """The depth called for it; 0 as long as none is."""
        self.fallen_back = np.zeros(capacity, np.bool_)
        self.outcomes = np.zeros((capacity, 1), np.int8)
        """Of the last calls, in a ring: 1 right, −1 wrong, 0 none yet."""
        self.known = np.zeros(capacity, np.int64)
        """Calls whose outcome is known."""
        self.window = np.ones(capacity, np.int64)
        self.floor = np.zeros(capacity)
        self.least_calls = np.ones(capacity, np.int64)

    @property
    def any(self) -> bool:
        """Whether any request so far had a gate: where none has, nothing need be looked at."""
        return bool(self.gates)

    def admit(self, r: int, lookahead: Lookahead | None) -> None:
        """Begin to watch a request, or say that it has no gate."""
        self.gate[r] = NO_GATE
        self.asking[r] = False
        if lookahead is None:
            return
        if lookahead not in self.gates:
            self.gates.append(lookahead)
        watch = lookahead.watch
        self._hold(watch.window)
        self.gate[r] = self.gates.index(lookahead)
        self.called[r] = self.known[r] = 0
        self.fallen_back[r] = False
        self.outcomes[r] = 0
        self.window[r], self.floor[r] = watch.window, watch.floor
        self.least_calls[r] = watch.least_calls

    def start_tokens(self, residents: IntArray) -> None:
        """Before loop 1 of the residents' next tokens."""
        self.called[residents] = 0
        self.asking[residents] = (self.gate[residents] != NO_GATE) & ~self.fallen_back[residents]

    def calls(
        self, residents: IntArray, loops: IntArray, state_TD: Tensor, signal_T: Tensor
    ) -> BoolArray:
        """Whose gate calls an exit after the next loop; ``loops`` are those just run.

        No gate is asked once it has called, nor where only the last loop is left.
        """
        called = np.zeros(residents.size, np.bool_)
        for lookahead, mask in self._asked(residents, loops):
            rows = np.flatnonzero(mask)
            at = torch.from_numpy(rows).to(state_TD.device)
            loops_T = torch.from_numpy(loops[rows]).to(state_TD.device)
            said = lookahead.calls(
                state_TD.index_select(0, at), signal_T.index_select(0, at), loops_T
            )
            called[rows] = said.cpu().numpy()
        return called

    def settle(self, residents: IntArray, loops: IntArray, right: BoolArray) -> None:
        """Once the rule's tests after ``loops`` are known: how the calls for them went.

        ``right`` says whether the rule has asked for an exit by then.
        """
        due = self.called[residents] == loops
        if not np.count_nonzero(due):
            return
        rows = residents[due]
        place = self.known[rows] % self.window[rows]
        self.outcomes[rows, place] = np.where(right[due], 1, -1)
        self.known[rows] += 1
        self.fallen_back[rows] |= self._precision_is_low(rows)

    def asked_depths(self, residents: IntArray, loops: IntArray, requested: IntArray) -> IntArray:
        """What the rule asked for, of complete tokens; ``requested`` beyond R: it never did.

        A token that a call ended and the rule had not is asked at least one loop more of: how many,
        this run's signals do not say.
        """
        early = (self.called[residents] == loops) & (requested > loops) & (loops < self.max_loops)
        depths: IntArray = np.minimum(requested, loops) + early
        return depths

    def predicted(self, residents: IntArray) -> IntArray:
        """The depth called for each complete token: R where none was, 0 where none was asked."""
        called = self.called[residents]
        depths: IntArray = np.where(called > 0, called, self.max_loops)
        return np.where(self.asking[residents], depths, 0)

    def save(self, r: int) -> dict[str, Any]:
        """A resident's lines, to be restored under another number."""
        return {name: getattr(self, name)[r].copy() for name in _LINES}

    def restore(self, r: int, saved: dict[str, Any]) -> None:
        """Put saved lines under the number that a request now has."""
        for name, value in saved.items():
            array = getattr(self, name)
            if array.ndim > 1:
                array[r] = 0
                array[r, : value.size] = value
            else:
                array[r] = value

    def _asked(self, residents: IntArray, loops: IntArray) -> Iterator[tuple[Lookahead, BoolArray]]:
        asked = self.asking[residents] & (self.called[residents] == 0)
        asked &= loops < self.max_loops - 1
        gates = self.gate[residents]
        for index in np.unique(gates[asked]):
            yield self.gates[int(index)], asked & (gates == index)

    def _precision_is_low(self, rows: IntArray) -> BoolArray:
        outcomes = self.outcomes[rows]
        known = np.count_nonzero(outcomes, axis=1)
        right = np.count_nonzero(outcomes > 0, axis=1)
        low: BoolArray = (right < self.floor[rows] * known) & (known >= self.least_calls[rows])
        return low

    def _hold(self, window: int) -> None:
        have = self.outcomes.shape[1]
        if window > have:
            self.outcomes = np.pad(self.outcomes, ((0, 0), (0, window - have)))


_LINES = (
    "gate",
    "asking",
    "called",
    "fallen_back",
    "outcomes",
    "known",
    "window",
    "floor",
    "least_calls",
)
