"""From what a source offers to the requests of a workload: which, how long, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.runtime.admission import check_request
from cdbench.runtime.core import Request
from cdbench.workloads.candidates import Candidate, Source, default_max_new_tokens
from cdbench.workloads.lengths import LengthSpec, cut_or_repeat, parse_lengths
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
    notes = [*source.notes, *_selection_notes(plan, source, passed_over)]
    if lengths is not None:
        notes += size_notes(plan, sizes, lengths[: len(requests)])
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
        # A person knows the line and the key, not the number and the field that the engine sees.
        line = str(error).replace(f"request {request.id!r}", where, 1)
        raise UsageError(
            line.replace("lower max_new_tokens", f"lower {_length_key(plan)}")
        ) from None


def prompt_lengths(plan: Plan, count: int) -> list[int] | None:
    """The prompt lengths asked for, in tokens; None for prompts as they are.

    The long tail of a lognormal distribution is cut to what the model has positions for. UsageError
    where it has none for the longest, or the median, that is asked for.
    """
    settings = plan.config.workload
    if settings.prompt_tokens is None:
        return None
    spec, room = _asked_lengths(plan)
    # Before the prompts are made: they might not fit this machine's memory either.
    if spec.high > room:
        positions = plan.model.network.dims.max_positions
        raise UsageError(
            f"workload.prompt_tokens: {spec} asks for prompts of {spec.high:,} tokens, but the "
            f"model's {positions:,} positions have room for {room:,}; lower it, or the length of "
            "the outputs"
        )
    return [min(length, room) for length in spec.draw(count, settings.seed)]


def _asked_lengths(plan: Plan) -> tuple[LengthSpec, int]:
    """The lengths asked for, and the longest prompt that the model has room for.

    Beside the outputs where the lengths have a tail to be cut, else beside one token.
    """
    spec = parse_lengths(str(plan.config.workload.prompt_tokens))
    positions = plan.model.network.dims.max_positions
    return spec, positions if spec.sigma is None else max(1, positions + 1 - _new_tokens(plan))


def _new_tokens(plan: Plan) -> int:
    """How long an output may become."""
    settings = plan.config.workload
    if isinstance(settings.output, int):
        return settings.output
    return settings.max_new_tokens or default_max_new_tokens(plan.model)


def _fits(plan: Plan, request: Request) -> bool:
    """Whether there are tokens on both sides, and the model has positions for them."""
    has_both = bool(len(request.prompt)) and request.new_tokens > 0
    return has_both and request.positions <= plan.model.network.dims.max_positions


def _length_key(plan: Plan) -> str:
    """The key that says how long outputs may become."""
    fixed = isinstance(plan.config.workload.output, int)
    return f"workload.{'output' if fixed else 'max_new_tokens'}"


# What has to be said.


def size_notes(plan: Plan, before: Sequence[int], after: Sequence[int]) -> Iterator[str]:
    """How many prompts had to be stretched, and whether the lengths are those asked for.

    Repeated text exits earlier than fresh text.
    """
    yield from tail_notes(plan, after)
    longer = sum(length > own for own, length in zip(before, after, strict=True))
    if longer:
        yield (
            f"{longer} of {len(before)} prompts are their own text repeated to the length asked "
            "for: depths may be shallower than on fresh text"
        )


def tail_notes(plan: Plan, lengths: Sequence[int]) -> Iterator[str]:
    """How many lengths a long tail has at its cut, the most that the model has room for."""
    spec, room = _asked_lengths(plan)
    at_room = sum(length == room for length in lengths)
    if spec.sigma is not None and at_room:
        yield (
            f"{at_room} of {len(lengths)} prompts have {room} tokens, the most that the model has "
            f"room for: the tail of {spec} is cut there"
        )


def output_notes(plan: Plan) -> Iterator[str]:
    """What outputs are, where they are not what the model would have written."""
    output = plan.config.workload.output
    if output == "reference":
        yield "outputs are the reference answers, forced: the model would write others"
    elif isinstance(output, int):
        yield f"outputs run on past their stop to {output} tokens"


def shortfall(plan: Plan, given: int) -> Iterator[str]:
    """That a source gave fewer requests than were asked for."""
    settings = plan.config.workload
    if given >= settings.requests:
        return
    names = {"demo": "the tasks' questions"}
    if plan.trace is not None:
        names |= {"trace": plan.trace.file, "random": plan.trace.file}
    source = names.get(settings.source, settings.source)
    yield f"workload.requests: {settings.requests} were asked for, {source} gave {given}"


def _selection_notes(plan: Plan, source: Source, passed_over: int) -> Iterator[str]:
    settings = plan.config.workload
    if source.unread:
        yield f"{source.unread} rows of {settings.source} cannot be read as {source.format}"
    if passed_over:
        positions = plan.model.network.dims.max_positions
        yield (
            f"{passed_over} rows were passed over: empty on one side, or too long for the model's "
            f"{positions} positions"
        )


def _nothing_left(plan: Plan, source: Source, passed_over: int) -> str:
    name = plan.config.workload.source
    if passed_over:
        positions = plan.model.network.dims.max_positions
        return (
            f"workload.source: no row of {name} fits the model's {positions} positions; "
            f"lower {_length_key(plan)}, or set a workload.prompt_tokens that does"
        )
    if plan.config.workload.template is not None:
        return (
            f"workload.template: the columns it names are empty in every row of {name}; name others"
        )
    return (
        f"workload.source: none of the {source.unread} rows of {name} can be read as "
        f"{source.format}; set workload.format or workload.column"
    )
