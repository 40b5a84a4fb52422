"""From what a source offers to the requests of a workload: which, how long, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.runtime.admission import check_request
from cdbench.runtime.core import Request
from cdbench.workloads.candidates import Candidate, Source, default_max_new_tokens
from cdbench.workloads.lengths import cut_or_repeat, parse_lengths
from cdbench.workloads.resolve import sampling


@dataclass(frozen=True)
class Selection:
    """The requests chosen, and what a person may not expect of them."""

    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()


def choose(plan: Plan, source: Source) -> Selection:
    """The first candidates that the model has room for. UsageError where there is none."""
    settings = plan.config.workload
    lengths = prompt_lengths(plan, settings.requests)
    requests: list[Request] = []
    sizes: list[int] = []
    passed_over = 0
    for candidate in source.candidates:
        request = request_of(plan, candidate, lengths[len(requests)] if lengths else None)
        if candidate.optional and not _fits(plan, request):
            passed_over += 1
            continue
        check(plan, request, candidate.where)
        requests.append(request)
        sizes.append(len(candidate.prefix) + len(candidate.body))
        if len(requests) == settings.requests:
            break
    if not requests:
        raise UsageError(_nothing_left(plan, source, passed_over))
    notes = [*source.notes, *_selection_notes(plan, source, len(requests), passed_over)]
    if lengths is not None:
        notes += size_notes(sizes, lengths[: len(requests)])
    return Selection(tuple(requests), (*notes, *output_notes(plan)))


def request_of(plan: Plan, candidate: Candidate, length: int | None = None) -> Request:
    """A candidate as a request, its prompt cut or repeated to so many tokens (None: as it is)."""
    output = plan.config.workload.output
    prompt = (*candidate.prefix, *candidate.body)
    if length is not None:
        prompt = cut_or_repeat(candidate.body, length, candidate.prefix)
    request = Request(
        id=candidate.id,
        prompt=prompt,
        max_new_tokens=candidate.max_new_tokens,
        exit=plan.policy,
        sampling=sampling(plan.config),
        stop_ids=plan.model.stop_ids,
        force=candidate.force,
        doc_id=candidate.doc_id,
    )
    if isinstance(output, int):
        return endless(request, output)
    if output == "recorded":
        return request
    if candidate.reference is None:
        raise UsageError(
            f"{candidate.where}: has no reference answer to force; set workload.reference_column, "
            "or use output recorded"
        )
    return replace(request, force=candidate.reference)


def endless(request: Request, tokens: int) -> Request:
    """The request with an output of exactly so many tokens, whatever the model says."""
    return replace(
        request,
        max_new_tokens=tokens,
        ignore_eos=True,
        stop_ids=frozenset(),
        stop_strings=(),
        force=None,
    )


def check(plan: Plan, request: Request, where: str) -> None:
    """Raise UsageError, naming the request as a person knows it, where it cannot be served."""
    try:
        has_tokenizer = plan.model.tokenizer is not None
        check_request(request, plan.model.network.dims, plan.max_loops, has_tokenizer)
    except UsageError as error:
        # A person knows the line, not the number that the engine would see.
        raise UsageError(str(error).replace(f"request {request.id!r}", where, 1)) from None


def prompt_lengths(plan: Plan, count: int) -> list[int] | None:
    """The prompt lengths asked for, in tokens; None for prompts as they are.

    The long tail of a lognormal distribution is cut to what the model has positions for.
    """
    settings = plan.config.workload
    if settings.prompt_tokens is None:
        return None
    spec = parse_lengths(str(settings.prompt_tokens))
    lengths = spec.draw(count, settings.seed)
    if spec.sigma is None:
        return lengths
    new = settings.max_new_tokens or default_max_new_tokens(plan.model)
    if isinstance(settings.output, int):
        new = settings.output
    room = plan.model.network.dims.max_positions + 1 - new
    return [max(1, min(length, room)) for length in lengths]


def _fits(plan: Plan, request: Request) -> bool:
    """Whether there are tokens on both sides, and the model has positions for them."""
    has_both = bool(len(request.prompt)) and request.new_tokens > 0
    return has_both and request.positions <= plan.model.network.dims.max_positions


# What has to be said.


def size_notes(before: Sequence[int], after: Sequence[int]) -> Iterator[str]:
    """How many prompts had to be stretched: repeated text exits earlier than fresh text."""
    longer = sum(length > own for own, length in zip(before, after, strict=True))
    if longer:
        yield (
            f"{longer} of {len(before)} prompts are their own text repeated to the length asked "
            "for: depths may be shallower than on fresh text"
        )


def output_notes(plan: Plan) -> Iterator[str]:
    """What outputs are, where they are not what the model would have written."""
    output = plan.config.workload.output
    if output == "reference":
        yield "outputs are the reference answers, forced: the model would write others"
    elif isinstance(output, int):
        yield f"outputs run on past their stop to {output} tokens"


def _selection_notes(plan: Plan, source: Source, chosen: int, passed_over: int) -> Iterator[str]:
    settings = plan.config.workload
    if source.unread:
        yield f"{source.unread} rows of {settings.source} cannot be read as {source.format}"
    if passed_over:
        positions = plan.model.network.dims.max_positions
        yield (
            f"{passed_over} rows were passed over: empty on one side, or too long for the model's "
            f"{positions} positions"
        )
    if chosen < settings.requests and source.format != "ids":
        yield f"{settings.requests} requests were asked for, {settings.source} gave {chosen}"


def _nothing_left(plan: Plan, source: Source, passed_over: int) -> str:
    name = plan.config.workload.source
    if passed_over:
        positions = plan.model.network.dims.max_positions
        return (
            f"workload.source: no row of {name} fits the model's {positions} positions; "
            "lower workload.max_new_tokens, or set a workload.prompt_tokens that does"
        )
    return (
        f"workload.source: none of the {source.unread} rows of {name} can be read as "
        f"{source.format}; set workload.format or workload.column"
    )
