"""Who watches the gates that look ahead: what they called for each token, and how it went.

Every request is watched by its own calls alone. Once their recent precision falls below a floor,
the request goes on with the plain rule at lag 1, which only ever loops more. No other request, no
launch and no clock enter, so the schedule still changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.lookahead import FIRST_CALLED, Lookahead
from cdbench.runtime.readback import to_device

NO_GATE = -1


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

        It is asked before any loop has run.
        """
        device = prelude_TD.device
        called_T: Tensor | None = None
        for lookahead, mask in self._asked(residents, np.zeros_like(residents)):
            if lookahead.pre_loop is not None:
                at = to_device(np.flatnonzero(mask), device)
                said = lookahead.pre_loop.calls(prelude_TD.index_select(0, at))
                if called_T is None:
                    called_T = torch.zeros(residents.size, dtype=torch.bool, device=device)
                called_T[at] = said
        return called_T

    def calls(
        self, residents: IntArray, loops: IntArray, state_TD: Tensor, signal_T: Tensor
    ) -> Tensor | None:
        """Whose gate calls an exit after the next loop ``[T]``; ``loops`` are those just run.

        None where no gate is asked: once it has called, and where only the last loop is left.
        """
        device = state_TD.device
        called_T: Tensor | None = None
        for lookahead, mask in self._asked(residents, loops):
            rows = np.flatnonzero(mask)
            at, loops_T = to_device(rows, device), to_device(loops[rows], device)
            said = lookahead.calls(
                state_TD.index_select(0, at), signal_T.index_select(0, at), loops_T
            )
            if called_T is None:
                called_T = torch.zeros(residents.size, dtype=torch.bool, device=device)
            called_T[at] = said
        return called_T

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
    "earliest",
    "fallen_back",
    "outcomes",
    "known",
    "window",
    "floor",
    "least_calls",
)
