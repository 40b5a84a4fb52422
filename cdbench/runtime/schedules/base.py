"""The loop level: which resident tokens run which stage next. Policy only.

The token level (the engine) decides who is resident, where KV lies, what is sampled and when a
request ends. A schedule sees resident numbers and nothing else of a request. Four calls join the
two: *enter*, *next launch*, *signals*, *leave*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from cdbench.metrics.curves import MeasuredCurves
from cdbench.runtime.core import IntArray


class Work(StrEnum):
    """What a tick launches."""

    PREFILL = "prefill"
    CORE = "core"
    CODA = "coda"


class Verdict:
    """Where a token goes after a launch; numpy numbers, because arrays of them are compared."""

    LOOP: Final = np.int8(0)
    """It runs another loop."""
    READ_OUT: Final = np.int8(1)
    """Its rule needs this loop's logits before it can decide."""
    EXIT: Final = np.int8(2)
    """It has exited: the coda is next."""
    DONE: Final = np.int8(3)
    """Its coda has run: the token is finished and leaves the loop level."""


VerdictArray = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Launch:
    """One decision: what to launch, with which residents (none are named for a prefill).

    In a core launch that ``rides`` the prompt chunk that comes next takes part.
    """

    work: Work
    residents: IntArray
    rides: bool = False


NOBODY: IntArray = np.empty(0, dtype=np.int64)
PREFILL = Launch(Work.PREFILL, NOBODY)


class Schedule(ABC):
    """A policy over tokens in flight; each resident has at most one."""

    @abstractmethod
    def enter(self, residents: IntArray, place: np.int8 = Verdict.LOOP) -> None:
        """Tokens whose prelude has run: ready for loop 1.

        Tokens that left in the middle come back at the ``place`` that ``leave`` named.
        """

    @abstractmethod
    def next_launch(self, prefill_offered: bool, may_ride: bool = False) -> Launch | None:
        """The next launch, or None when there is nothing to do.

        The residents named are out of the schedule's hands until ``signals`` returns them. A
        prefill may be chosen only when the token level offers one; where that one ``may_ride``, a
        core launch takes it along instead.
        """

    @abstractmethod
    def signals(self, launch: Launch, verdicts: VerdictArray) -> None:
        """What became of the residents of a core or coda launch, in its order."""

    @abstractmethod
    def leave(self, residents: IntArray) -> VerdictArray:
        """Forget these residents wherever they wait: cancelled, or put aside by the engine.

        Answers where each was: before its next loop (``LOOP``) or before a coda (``EXIT``).
        """

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Tokens held."""

    def use_curves(self, curves: MeasuredCurves) -> None:  # noqa: B027
        """Learn what launches take, where the policy depends on it. Called between runs.

        Raises:
            ValueError: the policy needs curves that reach further.
        """

    def start_afresh(self) -> None:  # noqa: B027
        """Forget what was learned of the tokens served so far, before a repeat."""

    @property
    def note(self) -> str | None:
        """What must be said of how it ran; None for nothing."""
        return None


def joined(head: IntArray, tail: IntArray) -> IntArray:
    """Two queues as one; mostly one of them is empty, and nothing is copied."""
    if not head.size or not tail.size:
        return head if head.size else tail
    return np.concatenate([head, tail])


def places(residents: IntArray, before_coda: IntArray) -> VerdictArray:
    """Where residents wait, for ``leave``: those in ``before_coda`` at ``EXIT``."""
    return np.where(np.isin(residents, before_coda), Verdict.EXIT, Verdict.LOOP)


def without(queue: IntArray, residents: IntArray) -> IntArray:
    """A queue with some residents taken out, order kept."""
    return queue[~np.isin(queue, residents)]
