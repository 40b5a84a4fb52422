"""What residents have produced: one line each, filled token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdbench.runtime.core import FloatArray, IntArray

OUTPUTS = ("tokens", "executed", "requested", "logprobs", "token_s", "predicted")


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

    def claim(self, residents: IntArray, executed: IntArray, requested: IntArray) -> IntArray:
        """Count a token of each that is chosen but not known yet; which of its tokens it is."""
        count = self.count[residents]
        at = residents * self.tokens.shape[1] + count
        self.executed.reshape(-1)[at] = executed
        self.requested.reshape(-1)[at] = requested
        self.count[residents] = count + 1
        return count

    def fill(
        self,
        residents: IntArray,
        numbers: IntArray,
        tokens: IntArray,
        logprobs: FloatArray,
        now_s: float,
    ) -> None:
        """Write down claimed tokens, by their ``numbers``, now that they are known."""
        at = residents * self.tokens.shape[1] + numbers
        self.tokens.reshape(-1)[at] = tokens
        self.logprobs.reshape(-1)[at] = logprobs
        self.token_s.reshape(-1)[at] = now_s

    def hold(self, tokens: int) -> None:
        """Make the lines long enough for so many tokens."""
        for name in OUTPUTS:
            setattr(self, name, widened(getattr(self, name), tokens, 0))

    def save(self, resident: int) -> dict[str, Any]:
        """A resident's outputs so far, by array."""
        count = int(self.count[resident])
        return {name: getattr(self, name)[resident, :count].copy() for name in OUTPUTS}

    def restore(self, resident: int, saved: dict[str, Any]) -> None:
        for name, values in saved.items():
            getattr(self, name)[resident, : values.size] = values
        self.count[resident] = saved["tokens"].size


def widened(array: npt.NDArray[Any], width: int, fill: int) -> npt.NDArray[Any]:
    """A copy with longer lines, padded with ``fill``."""
    wider = np.full((array.shape[0], width), fill, array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
