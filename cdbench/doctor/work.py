"""The requests of an examination: real prompts where there are any, and forced ones beside them.

Greedy output of a trained model is so sure of itself that its logprobs hide small errors. So beside
the *free* requests, which write their own text, a few *probes* are forced through pseudo-random
tokens: the logprob of an unlikely token shows everything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.evals.tasks import load_task
from cdbench.models.base import ModelDims
from cdbench.models.loading import LoadedModel
from cdbench.runtime.admission import check_request
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.workloads.prompts import Prompt, read_ids_file

RANDOM_PROMPT_TOKENS = (3, 24)
REQUESTS_PER_PROBE = 4
LENGTH_STEPS = 4
"""Outputs come in so many lengths, so that requests end at different times."""
SEED = 1


@dataclass(frozen=True)
class Work:
    """What is served. ``source`` says where the prompts come from."""

    free: tuple[Request, ...]
    probes: tuple[Request, ...]
    source: str
    is_random: bool = False

    @property
    def requests(self) -> tuple[Request, ...]:
        return (*self.free, *self.probes)


def choose(
    model: LoadedModel, policy: ExitPolicy, prompts_file: str | None, count: int, new_tokens: int
) -> Work:
    """``count`` requests of up to ``new_tokens`` tokens, and the probes beside them.

    Prompts come from the file, else from the tasks on the model's card, else from a seed.
    UsageError for a file that cannot be read or does not fit the model.
    """
    prompts, source, is_random = _prompts(model, prompts_file, count)
    dims = model.network.dims
    requests = [
        _request(index, prompt, model, policy, new_tokens) for index, prompt in enumerate(prompts)
    ]
    for request, prompt in zip(requests, prompts, strict=True):
        _check(request, prompt, dims)
    free = [request for request in requests if request.force is None]
    forced = [request for request in requests if request.force is not None]
    every = free[:: max(1, min(REQUESTS_PER_PROBE, len(free) // 2))]
    forced += [_probe(request, dims) for request in every]
    return Work(tuple(free), tuple(forced), source, is_random)


def _prompts(model: LoadedModel, file: str | None, count: int) -> tuple[list[Prompt], str, bool]:
    """Prompts as ids, where they are from, and whether they are no text at all."""
    if file is not None:
        return read_ids_file(str(resources.find_file(file)))[:count], file, False
    if model.tokenizer is not None and model.card.tasks:
        return _task_prompts(model, count), "the tasks on the model's card", False
    return _random_prompts(model.network.dims, count), "random token ids", True


def _task_prompts(model: LoadedModel, count: int) -> list[Prompt]:
    """Questions of every task in turn, until there are enough."""
    names = model.card.tasks
    tasks = [load_task(name, limit=-(-count // len(names))) for name in names]
    longest = max(len(task.documents) for task in tasks)
    documents = [t.documents[i] for i in range(longest) for t in tasks if i < len(t.documents)]
    return [
        Prompt(f"{d.task} {d.doc_id}", ids=tuple(model.encode(d.prompt))) for d in documents[:count]
    ]


def _random_prompts(dims: ModelDims, count: int) -> list[Prompt]:
    draw = random.Random(SEED)
    low, high = (min(n, max(1, dims.max_positions // 2)) for n in RANDOM_PROMPT_TOKENS)
    lengths = [draw.randint(low, high) for _ in range(count)]
    return [
        Prompt(f"random prompt {i}", ids=tuple(draw.randrange(dims.vocab_size) for _ in range(n)))
        for i, n in enumerate(lengths)
    ]


def _request(
    index: int, prompt: Prompt, model: LoadedModel, policy: ExitPolicy, new_tokens: int
) -> Request:
    asked = new_tokens - index % LENGTH_STEPS * (new_tokens // (2 * LENGTH_STEPS))
    room = model.network.dims.max_positions - len(prompt.ids) + 1
    return Request(
        id=str(index),
        prompt=prompt.ids,
        max_new_tokens=prompt.max_new_tokens or max(1, min(asked, room)),
        exit=policy,
        stop_ids=model.stop_ids,
        force=prompt.force,
    )


def _check(request: Request, prompt: Prompt, dims: ModelDims) -> None:
    try:
        check_request(request, dims, dims.max_loops)
    except UsageError as error:
        # A person knows the line of the file, not the number of the request.
        raise UsageError(str(error).replace(f"request {request.id!r}", prompt.where, 1)) from None


def _probe(request: Request, dims: ModelDims) -> Request:
    draw = random.Random(f"{SEED}/{request.id}")
    force = [draw.randrange(dims.vocab_size) for _ in range(request.max_new_tokens)]
    return replace(request, id=f"{request.id}-probe", force=force)


def arriving(requests: Sequence[Request]) -> list[Request]:
    """The same requests, coming in a few readings of the clock after one another."""
    return [replace(r, arrival_s=float(11 * i % 37)) for i, r in enumerate(requests)]


def under(requests: Sequence[Request], policy: ExitPolicy) -> list[Request]:
    """The same requests under another rule."""
    return [replace(request, exit=policy) for request in requests]


def shortened(requests: Sequence[Request], share: int) -> list[Request]:
    """The same requests with a part of their output: one ``share``-th."""
    return [_shorter(request, max(1, request.new_tokens // share)) for request in requests]


def _shorter(request: Request, tokens: int) -> Request:
    force = None if request.force is None else list(request.force)[:tokens]
    return replace(request, max_new_tokens=tokens, force=force)
