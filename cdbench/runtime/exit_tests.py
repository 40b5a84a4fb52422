"""What exit rules, and the gates that look ahead for them, see of a launch and say to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.core import BoolArray, IntArray
from cdbench.runtime.exit_rule import Evidence, Needs
from cdbench.runtime.readback import to_device
from cdbench.runtime.residents import Residents
from cdbench.runtime.rule_memory import RULE_LIST

SignalWatch = Callable[[IntArray, Tensor], None]
"""Told every signal as it is computed: whose, and the values ``[T]``."""


class ExitTests:
    """Turns the evidence that a launch leaves into the tests of its rows' rules."""

    def __init__(self, model: StagedModel, residents: Residents, device: torch.device) -> None:
        self.model, self.residents, self.device = model, residents, device
        self.watch: SignalWatch | None = None
        self.watch_prelude: SignalWatch | None = None
        """Told what the prelude gave: whose, and the values ``[T, D]``."""

    def before_loops(self, residents: IntArray, prelude_TD: Tensor) -> Tensor | None:
        """What pre-loop gates call on what the prelude gave these residents' tokens ``[T]``.

        None where there is none to ask.
        """
        if self.watch_prelude is not None:
            self.watch_prelude(residents, prelude_TD)
        foresight = self.residents.foresight
        return foresight.calls_before(residents, prelude_TD) if foresight.any else None

    def after_loop(
        self, residents: IntArray, loops: IntArray, state: Tensor, seen: dict[Needs, Evidence]
    ) -> tuple[Tensor | None, Tensor | None]:
        """The tests after a loop, and what gates call for the next one; None each for nobody's."""
        foresight = self.residents.foresight
        met_T, signals_T = self._tested(residents, seen)
        if not foresight.any or signals_T is None:
            return met_T, None
        return met_T, foresight.calls(residents, loops, state, signals_T)

    def met(self, residents: IntArray, seen: dict[Needs, Evidence]) -> Tensor | None:
        """Tests ``[T]`` of the rules whose evidence this launch has; False for other rows.

        None where there is no such row.
        """
        return self._tested(residents, seen)[0]

    def _tested(
        self, residents: IntArray, seen: dict[Needs, Evidence]
    ) -> tuple[Tensor | None, Tensor | None]:
        """``met``, and the signals ``[T]`` behind it where gates want them; NaN: a row without."""
        res = self.residents
        met_T: Tensor | None = None
        signals_T: Tensor | None = None
        if Needs.LOGITS in seen and not res.any_reads_out:
            return None, None
        for index, mask in rules_among(res.rule[residents]):
            rule = RULE_LIST[index]
            if rule.needs not in seen:
                continue
            evidence, where = seen[rule.needs], to_device(residents, self.device)
            if mask is not None:
                rows = to_device(np.flatnonzero(mask), self.device)
                evidence = tuple(x.index_select(0, rows) for x in evidence)
                where = where.index_select(0, rows)
            if rule.needs is Needs.GATE:
                evidence = (self.model.exit_logit(*evidence),)
            signal = res.memories.signal(index, evidence, where)
            if self.watch is not None:
                self.watch(residents if mask is None else residents[mask], signal)
            tests = rule.met(signal.double(), res.threshold.index_select(0, where))
            if mask is None:
                return tests, signal
            if met_T is None:
                met_T = torch.zeros(residents.size, dtype=torch.bool, device=self.device)
            met_T[rows] = tests
            if res.foresight.any:
                if signals_T is None:
                    signals_T = torch.full_like(met_T, torch.nan, dtype=signal.dtype)
                signals_T[rows] = signal
        return met_T, signals_T


def rules_among(rules: IntArray) -> list[tuple[int, BoolArray | None]]:
    """The rules of some rows, by index, each with its mask (None: all of them)."""
    if np.count_nonzero(rules == rules[0]) == rules.size:
        return [(int(rules[0]), None)]
    return [(int(i), rules == i) for i in np.unique(rules)]
