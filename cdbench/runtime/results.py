"""From what the engine holds of a request to the result its caller gets."""

from __future__ import annotations

from cdbench.runtime.core import FinishReason, Request, RequestResult
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.residents import Residents


def finished(
    residents: Residents,
    r: int,
    reason: FinishReason,
    *,
    text: str | None,
    stop_depth: int | None,
    now_s: float,
) -> RequestResult:
    """The result of a resident that ends now; its text is cut at its first stop string."""
    request, out = residents.request(r), residents.outputs
    n = int(out.count[r])
    cut = first_stop(text, request.stop_strings) if request.force is None else None
    if cut is not None and reason is FinishReason.LENGTH:
        reason = FinishReason.STOP
    return RequestResult(
        id=request.id,
        prompt_tokens=len(request.prompt),
        tokens=out.tokens[r, :n].tolist(),
        executed_depths=out.executed[r, :n].tolist(),
        requested_depths=out.requested[r, :n].tolist(),
        logprobs=out.logprobs[r, :n].tolist(),
        text=text if text is None or cut is None else text[:cut],
        # A first token's loops are the prompt's, so as a stop it has none of its own.
        stop_depth=stop_depth if n else None,
        finish_reason=reason,
        error=None,
        arrival_s=request.arrival_s,
        admitted_s=float(residents.admitted_s[r]),
        token_s=out.token_s[r, :n].tolist(),
        finish_s=now_s,
        task=request.task,
        doc_id=request.doc_id,
        cancelled_loops=int(residents.loop[r]) if reason is FinishReason.CANCELLED else 0,
    )


def first_stop(text: str | None, strings: tuple[str, ...]) -> int | None:
    """Where the earliest of the stop strings begins in the text, if one is there."""
    found = [text.find(s) for s in strings if s in text] if text is not None else []
    return min(found, default=None)


def refused(request: Request, cache: KVCache, now_s: float) -> RequestResult:
    """The result of a request that can never fit the KV budget; the others go on."""
    result = never_ran(request, now_s, FinishReason.ERROR)
    result.error = (
        f"needs {request.positions * cache.position_bytes} bytes of KV cache, "
        f"{cache.budget_bytes} are available; raise kv.budget_bytes or shorten the request"
    )
    return result


def never_ran(request: Request, now_s: float, reason: FinishReason) -> RequestResult:
    """The result of a request that was never admitted."""
    return RequestResult(
        id=request.id,
        prompt_tokens=len(request.prompt),
        tokens=[],
        executed_depths=[],
        requested_depths=[],
        logprobs=[],
        text=None,
        stop_depth=None,
        finish_reason=reason,
        error=None,
        arrival_s=request.arrival_s,
        admitted_s=None,
        token_s=[],
        finish_s=now_s,
        task=request.task,
        doc_id=request.doc_id,
    )
