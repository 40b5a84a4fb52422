"""Who watches the gates that look ahead: what they called for each token, and how it went.

Every request is watched by its own calls alone. Once their recent precision falls below a floor,
the request goes on with the plain rule at lag 1, which only ever loops more. No other request, no
launch and no clock enter, so the schedule still changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.lookahead import FIRST_CALLED, FIRST_LOOP, Lookahead, PreLoopGate
from cdbench.runtime.readback import to_device

NO_GATE = -1
AnyGate = TypeVar("AnyGate", Lookahead, PreLoopGate)


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
        self.earliest = np.full(capacity, FIRST_CALLED, np.int64)
        """The earliest depth that its gate can call."""
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
        self.earliest[r] = lookahead.earliest
        self.outcomes[r] = 0
        self.window[r], self.floor[r] = watch.window, watch.floor
        self.least_calls[r] = watch.least_calls

    def start_tokens(self, residents: IntArray) -> None:
        """Before loop 1 of the residents' next tokens."""
        self.called[residents] = 0
        self.asking[residents] = (self.gate[residents] != NO_GATE) & ~self.fallen_back[residents]

    def calls_before(self, residents: IntArray, prelude_TD: Tensor) -> Tensor | None:
        """Whose pre-loop gate calls an exit after loop 1 ``[T]``; None where there is none to ask.

        It is asked before any loop has run. As in ``calls``, rows not asked have no meaning.
        """
        before = {i: gate.pre_loop for i, gate in enumerate(self.gates) if gate.pre_loop}
        asked = self.asked_before(residents)
        return self._said(residents, asked, before, lambda gate: gate.calls(prelude_TD))

    def calls(
        self, residents: IntArray, loops: IntArray, state_TD: Tensor, signal_T: Tensor
    ) -> Tensor | None:
        """Whose gate calls an exit after the next loop ``[T]``; ``loops`` are those just run.

        None where no gate is asked: once it has called, and where only the last loop is left. A
        gate scores all rows of a launch, because choosing rows takes longer on a device than
        scoring them; what is said of rows that are not ``asked`` has no meaning.
        """
        asked = self.asked(residents, loops)
        asked &= self.called[residents] == 0
        return self._said(
            residents,
            asked,
            dict(enumerate(self.gates)),
            lambda gate: gate.calls(state_TD, signal_T, loops),
        )

    def asked_before(self, residents: IntArray) -> BoolArray:
        """Whose token in flight is looked ahead for before loop 1."""
        asked: BoolArray = self.asking[residents] & (self.earliest[residents] == FIRST_LOOP)
        return asked

    def asked(self, residents: IntArray, loops: IntArray) -> BoolArray:
        """Whose token in flight is looked ahead for after ``loops``: with more than one left."""
        asked: BoolArray = self.asking[residents] & (loops < self.max_loops - 1)
        return asked

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

    def _said(
        self,
        residents: IntArray,
        asked: BoolArray,
        gates: Mapping[int, AnyGate],
        ask: Callable[[AnyGate], Tensor],
    ) -> Tensor | None:
        """What the gates of those asked say, each of its own rows; None where none is asked."""
        own = self.gate[residents]
        said_T: Tensor | None = None
        for index, gate in gates.items():
            if not np.count_nonzero(asked & (own == index)):
                continue
            said = ask(gate)
            if said_T is None:
                said_T = said
            else:
                said_T = torch.where(to_device(own == index, said.device), said, said_T)
        return said_T

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
    "earliest",
    "fallen_back",
    "outcomes",
    "known",
    "window",
    "floor",
    "least_calls",
)
