"""From what the engine holds of a request to the result its caller gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cdbench.runtime.cache_shape import CacheShape
from cdbench.runtime.core import FinishReason, FloatArray, IntArray, Request, RequestResult
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.residents import Residents, SavedResident

Detokenize = Callable[[list[int]], str]


def _no_ids() -> IntArray:
    return np.empty(0, np.int64)


def _no_numbers() -> FloatArray:
    return np.empty(0, np.float64)


@dataclass(frozen=True)
class Ended:
    """A request that has ended, as arrays: lists and text are made when its result is asked for.

    Making them at once would put host work between two launches.
    """

    request: Request
    reason: FinishReason
    finish_s: float
    error: str | None = None
    admitted_s: float | None = None
    stop_depth: int | None = None
    cancelled_loops: int = 0
    tokens: IntArray = field(default_factory=_no_ids)
    executed: IntArray = field(default_factory=_no_ids)
    requested: IntArray = field(default_factory=_no_ids)
    logprobs: FloatArray = field(default_factory=_no_numbers)
    token_s: FloatArray = field(default_factory=_no_numbers)
    predicted: IntArray = field(default_factory=_no_ids)

    def result(self, detokenize: Detokenize | None) -> RequestResult:
        """The caller's view; the text is cut at its first stop string."""
        request, reason, tokens = self.request, self.reason, self.tokens.tolist()
        ran = self.admitted_s is not None
        text = detokenize(tokens) if detokenize is not None and ran else None
        cut = first_stop(text, request.stop_strings) if request.force is None else None
        if cut is not None and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        return RequestResult(
            id=request.id,
            prompt_tokens=len(request.prompt),
            tokens=tokens,
            executed_depths=self.executed.tolist(),
            requested_depths=self.requested.tolist(),
            logprobs=self.logprobs.tolist(),
            text=text if text is None or cut is None else text[:cut],
            stop_depth=self.stop_depth,
            finish_reason=reason,
            error=self.error,
            arrival_s=request.arrival_s,
            admitted_s=self.admitted_s,
            token_s=self.token_s.tolist(),
            finish_s=self.finish_s,
            task=request.task,
            doc_id=request.doc_id,
            cancelled_loops=self.cancelled_loops,
            predicted_depths=self._predicted(),
        )

    def _predicted(self) -> list[int | None] | None:
        """The depths that its gate called; a first token leaves at none of them."""
        if self.request.exit.lookahead is None:
            return None
        later = [depth or None for depth in self.predicted[1:].tolist()]
        return [None, *later] if self.predicted.size else []


def ended(
    residents: Residents, r: int, reason: FinishReason, stop_depth: int | None, now_s: float
) -> Ended:
    """What a resident leaves behind as it ends."""
    out = residents.outputs
    n = int(out.count[r])
    return Ended(
        request=residents.request(r),
        reason=reason,
        finish_s=now_s,
        admitted_s=float(residents.admitted_s[r]),
        # A first token's loops are the prompt's, so as a stop it has none of its own.
        stop_depth=stop_depth if n else None,
        cancelled_loops=int(residents.loop[r]) if reason is FinishReason.CANCELLED else 0,
        tokens=out.tokens[r, :n].copy(),
        executed=out.executed[r, :n].copy(),
        requested=out.requested[r, :n].copy(),
        logprobs=out.logprobs[r, :n].copy(),
        token_s=out.token_s[r, :n].copy(),
        predicted=out.predicted[r, :n].copy(),
    )


def completed(gone: Ended, token: int, logprob: float, token_s: float, finish_s: float) -> Ended:
    """The same with its last token, which was not known when the resident left."""
    gone.tokens[-1], gone.logprobs[-1], gone.token_s[-1] = token, logprob, token_s
    return replace(gone, finish_s=finish_s)


def withdrawn(saved: SavedResident, now_s: float) -> Ended:
    """A request cancelled while it was preempted."""
    out = saved.outputs
    return Ended(
        request=saved.request,
        reason=FinishReason.CANCELLED,
        finish_s=now_s,
        admitted_s=float(saved.lines["admitted_s"]),
        cancelled_loops=int(saved.lines["loop"]),
        **out,
    )


def first_stop(text: str | None, strings: tuple[str, ...]) -> int | None:
    """Where the earliest of the stop strings begins in the text, if one is there."""
    found = [text.find(s) for s in strings if s in text] if text is not None else []
    return min(found, default=None)


def refused(request: Request, cache: KVCache, now_s: float) -> Ended:
    """A request that can never fit the KV budget; the others go on."""
    error = over_budget(cache.shape, request.positions, cache.budget_bytes)
    return Ended(request, FinishReason.ERROR, now_s, error=error)


def over_budget(shape: CacheShape, positions: int, budget_bytes: int | None) -> str:
    """Why so many positions are refused."""
    return (
        f"needs {shape.budget_for(positions)} bytes of KV cache, "
        f"{budget_bytes} are available; raise the KV budget or shorten the request"
    )
