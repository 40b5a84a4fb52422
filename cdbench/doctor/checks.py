"""The invariants: what must come out the same, whatever the schedule, layout or memory.

A check is a function of the services that answers with what it compared. ``CHECKS`` has them in the
order in which they run; a broken one stops none of the others, but for ``stages``: a model whose
stages are not what it declares cannot be served.
"""

from __future__ import annotations

from dataclasses import replace

import psutil
import torch
from pydantic import JsonValue

from cdbench.doctor.comparison import Comparison
from cdbench.doctor.document import Difference
from cdbench.doctor.invariant import Found, Invariant
from cdbench.doctor.services import Services
from cdbench.doctor.serving import Served, Step, steps_of
from cdbench.doctor.stages import not_finite
from cdbench.doctor.whole import full_depth_logits
from cdbench.doctor.work import arriving
from cdbench.models.base import StagedModel
from cdbench.runtime.cache_shape import cache_shape
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine_config import EngineConfig

# The model by itself.


def weights(services: Services) -> Found:
    names = not_finite(services.subject.network)
    count = services.subject.network.parameter_count()
    broken = f"NaN or infinity in {', '.join(names)}" if names else None
    return Found(figures={"parameters": count, "not_finite": len(names)}, broken=broken)


def stages(services: Services) -> Found:
    report = services.stages
    figures: dict[str, JsonValue] = {"unread_parameters": len(report.unread)}
    return Found(figures=figures, broken="; ".join(report.complaints) or None)


def whole(services: Services) -> Found:
    """Logits of every produced token: token by token through the cache, and all at once."""
    comparison, largest = services.comparison(), 0.0
    comparison.services = 1
    for request in services.full_requests:
        gap = _hold_to_forward(comparison, request, services)
        largest = max(largest, gap)
    return Found(comparison, {"largest_logit_gap": largest})


def _hold_to_forward(comparison: Comparison, request: Request, services: Services) -> float:
    """Compare one request, and answer with its largest logit gap before any difference."""
    result = services.full.results[request.id]
    comparison.requests += 1
    if not result.tokens:
        return 0.0
    ids = [*request.prompt, *result.tokens[:-1]]
    forward = full_depth_logits(services.subject.network, ids).double()
    wanted = forward[len(request.prompt) - 1 :]
    found = services.full.logits[request.id][: len(result.tokens)].double()
    largest = 0.0
    gaps, steps = (wanted - found).abs().amax(-1).tolist(), steps_of(wanted)
    for index, (gap, step) in enumerate(zip(gaps, steps, strict=True)):
        if not comparison.tolerance.allows(gap, step.scale):
            comparison.wrong.append(_logit_difference(request, result, index, wanted, step))
            break
        comparison.tokens += 1
        largest = max(largest, gap)
    return largest


def _logit_difference(
    request: Request, result: RequestResult, index: int, wanted_NV: torch.Tensor, step: Step
) -> Difference:
    token = result.tokens[index]
    expected = token if request.force is not None else int(wanted_NV[index].argmax())
    return Difference(
        what="logprob" if expected == token else "token",
        request=request.id,
        token_index=index,
        expected_token=expected,
        found_token=token,
        expected_depth=result.executed_depths[index],
        found_depth=result.executed_depths[index],
        expected_logprob=float(wanted_NV[index].log_softmax(-1)[token]),
        found_logprob=result.logprobs[index],
        margin=step.margin,
        scale=step.scale,
    )


# Schedules.


def alone_batched(services: Services) -> Found:
    comparison, subject, requests = services.comparison(), services.subject, services.requests
    together = subject.together(len(requests))
    comparison.add(services.own, services.serve(together, requests)[0])
    crowded = subject.crowded(len(requests))
    comparison.add(services.own, services.serve(crowded, arriving(requests))[0])
    comparison.add(services.own, services.serve(replace(crowded, width=1), requests[::-1])[0])
    return Found(comparison)


def cdb_lockstep(services: Services) -> Found:
    """Held to the requests alone, as ``cdb`` is: the margins of its texts are known."""
    comparison, requests = services.comparison(), services.requests
    together = replace(services.subject.together(len(requests)), mode="lockstep")
    comparison.add(services.own, services.serve(together, requests)[0])
    crowded = replace(services.subject.crowded(len(requests)), mode="lockstep")
    comparison.add(services.own, services.serve(crowded, arriving(requests))[0])
    return Found(comparison)


def cdb_static(services: Services) -> Found:
    """Under rule ``none`` all three modes are one, and every token runs full depth."""
    comparison, requests = services.comparison(), services.full_requests
    together = services.subject.together(len(requests))
    for mode in ("static", "cdb", "lockstep"):
        comparison.add(
            services.full_here, services.serve(replace(together, mode=mode), requests)[0]
        )
    loops = services.subject.dims.max_loops
    shallow = [
        name
        for name, result in services.full_here.results.items()
        if any(depth != loops for depth in result.executed_depths)
    ]
    broken = f"under rule none, request {shallow[0]} ran fewer loops" if shallow else None
    return Found(comparison, broken=broken)


def replay(services: Services) -> Found:
    """Forced through their own tokens at their own depths, requests repeat themselves."""
    comparison, results = services.comparison(), services.own.results
    recorded = [
        _recorded(request, results[request.id])
        for request in services.requests
        if results[request.id].tokens
    ]
    if not recorded:
        return Found(skipped="no request produced a token")
    found, _ = services.serve(services.subject.crowded(len(recorded)), arriving(recorded))
    for name, result in found.items():
        # What the live rule asks for is seen only up to the recorded exit, and a stop not at all.
        own = results[name]
        result.requested_depths, result.stop_depth = own.requested_depths, own.stop_depth
    comparison.add(services.own, found)
    return Found(comparison)


def _recorded(request: Request, result: RequestResult) -> Request:
    return replace(request, force=result.tokens, replay_depths=result.executed_depths)


# Layouts and memory.


def layouts(services: Services) -> Found:
    """Layouts that keep the same slots, or slots that are never told apart."""
    loops = services.subject.dims.max_loops
    if loops == 1:
        return Found(skipped="one loop has one slot in every layout")
    comparison = services.comparison()
    same = {
        "per-loop": [f"slots:{loops}", f"slots:{loops + 1}"],
        "first-shared": ["slots:2"],
        "shared": ["slots:1"],
    }
    names = [name for first, others in same.items() for name in (first, *others)]
    served = services.layouts(ExitPolicy(), list(dict.fromkeys(names)))
    for first, others in same.items():
        for other in others:
            comparison.add(served[first], served[other].results)
    # Prompt tokens read one another's loop-k keys in every layout.
    expected = _first_tokens(served["per-loop"])
    for name in ("first-shared", "shared"):
        comparison.add(expected, _first_tokens(served[name]).results)
    # Tokens that leave at depth d never see what lies in slot d + 1 and beyond.
    for depth in sorted({1, loops - 2} & set(range(1, loops))):
        fixed = ExitPolicy("fixed", depth=depth)
        slots = services.layouts(fixed, ["per-loop", f"slots:{depth + 1}"])
        comparison.add(slots["per-loop"], slots[f"slots:{depth + 1}"].results)
    return Found(comparison)


def _first_tokens(served: Served) -> Served:
    lists = ("tokens", "executed_depths", "requested_depths", "logprobs")
    return Served(
        {
            name: replace(result, stop_depth=None, **{k: getattr(result, k)[:1] for k in lists})
            for name, result in served.results.items()
        }
    )


def chunked_prefill(services: Services) -> Found:
    comparison, requests = services.comparison(), services.requests
    together = services.subject.together(len(requests))
    for tokens in (1, 3):
        config = replace(together, prefill_tokens=tokens)
        comparison.add(services.own, services.serve(config, requests)[0])
    return Found(comparison)


def prefix_cache(services: Services) -> Found:
    """Every prompt twice, and the first halves of a few with another ending."""
    comparison, requests = services.comparison(), list(services.requests)
    crossed = _crossed([r for r in requests if len(r.prompt) > 1])
    if not crossed:
        return Found(skipped="no prompt is longer than one token")
    again = [replace(request, id=f"{request.id}-again") for request in requests]
    expected = services.alone(crossed)
    for request, twin in zip(requests, again, strict=True):
        for name in (request.id, twin.id):
            expected.results[name] = services.own.results[request.id]
            expected.steps[name] = services.own.steps[request.id]
    served = [*requests, *again, *crossed]
    config = replace(services.subject.crowded(len(served)), prefix_cache=True)
    results, engine = services.serve(config, served)
    comparison.add(expected, results)
    share = engine.cache.prefix_tokens / engine.cache.prompt_tokens
    found = Found(comparison, {"hit_rate": share})
    if not engine.cache.prefix_tokens:
        found.broken = "no prompt token was found in the cache"
    return found


def _crossed(requests: list[Request]) -> list[Request]:
    """A few prompts that begin as one request's and end as another's."""
    few = requests[: max(1, len(requests) // 3)]
    return [
        replace(
            request,
            id=f"{request.id}-crossed",
            prompt=(*request.prompt[: len(request.prompt) // 2], requests[-1 - i].prompt[-1]),
        )
        for i, request in enumerate(few)
    ]


def kv_budget(services: Services) -> Found:
    """Pools so small that requests are moved to host memory and back."""
    comparison, subject, requests = services.comparison(), services.subject, services.requests
    shape = cache_shape(subject.dims, subject.layout, subject.dims.max_loops, subject.dtype)
    longest = max(request.positions for request in requests)
    preemptions = mid_token = 0
    for percent in (100, 150):
        budget = shape.budget_for(longest * percent // 100)
        config = replace(subject.together(len(requests)), kv_budget_bytes=budget)
        results, engine = services.serve(config, requests)
        preemptions += engine.memory.counters.preemptions
        mid_token += engine.memory.counters.mid_token
        comparison.add(services.own, results)
    figures: dict[str, JsonValue] = {"preemptions": preemptions, "mid_token": mid_token}
    if not preemptions and not comparison.wrong:
        return Found(figures=figures, skipped="these requests are too alike to press one another")
    return Found(comparison, figures)


# The unrolled twin.


def unrolled_twin(services: Services) -> Found:
    loops = services.subject.dims.max_loops
    if loops == 1:
        return Found(skipped="the model runs one loop already")
    try:
        from cdbench.models.unrolled import unrolled
    except ImportError:
        return Found(skipped="this version cannot unroll a model")
    network = services.subject.network
    needed = (loops - 1) * network.weight_bytes().core
    if needed > _free_bytes(network) / 2:
        return Found(skipped=f"{needed:,.0f} bytes of copied weights do not fit beside the model")
    comparison = services.comparison()
    config = EngineConfig(mode="static", max_residents=min(len(services.requests), 64))
    results, _ = services.serve(config, services.full_requests, unrolled(network))
    comparison.add(services.full, {n: _at_depth(r, loops) for n, r in results.items()})
    return Found(comparison)


def _at_depth(result: RequestResult, loops: int) -> RequestResult:
    """A dense result as the looped model's full depth would have it."""
    depths = [loops] * len(result.tokens)
    stop = None if result.stop_depth is None else loops
    return replace(result, executed_depths=depths, requested_depths=depths, stop_depth=stop)


def _free_bytes(network: StagedModel) -> int:
    if network.device.type == "cuda":
        return torch.cuda.mem_get_info(network.device)[0]
    return int(psutil.virtual_memory().available)


STAGES = Invariant("stages", "stages = what the model declares", stages)

CHECKS: tuple[Invariant, ...] = (
    Invariant("weights", "every parameter is finite", weights),
    STAGES,
    Invariant("whole", "engine = the model's own forward", whole),
    Invariant("unrolled", "full depth = one core per loop", unrolled_twin),
    Invariant("cdb-static", "rule none: cdb = lockstep = static", cdb_static, rounds=3),
    Invariant("alone-batched", "alone = in company", alone_batched, rounds=4),
    Invariant("cdb-lockstep", "lockstep = alone, as cdb is", cdb_lockstep, rounds=2),
    Invariant("replay", "replayed = recorded", replay),
    Invariant("layouts", "layouts that keep the same slots", layouts, rounds=10),
    Invariant("chunked-prefill", "prompts in pieces = whole", chunked_prefill, rounds=2),
    Invariant("prefix-cache", "cached prefixes = none cached", prefix_cache, rounds=3),
    Invariant("kv-budget", "under memory pressure = without", kv_budget, rounds=2),
)
