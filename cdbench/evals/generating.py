"""lm-eval's ``generate_until``: every text submitted at once, cut and stopped as lm-eval does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import postprocess_generated_text

from cdbench.errors import UsageError
from cdbench.evals.answers import Answer, Asked, generated, identified
from cdbench.evals.generation import GenerationSettings, read_settings
from cdbench.evals.point import OperatingPoint
from cdbench.runtime.core import Request, RequestResult, SamplingParams
from cdbench.runtime.engine import Engine


def generate(point: OperatingPoint, instances: Sequence[Any]) -> list[Answer]:
    """Answers to (context, arguments) requests, in order.

    Raises UsageError, before anything runs, for an argument that is not available.
    """
    jobs = _jobs(point, instances)
    results = _run(point, [job.request for job in jobs])
    return [
        generated(job.asked, found, _text(point, found, job.settings))
        for job in jobs
        for found in (results[job.request.id],)
    ]


def requests_of(point: OperatingPoint, instances: Sequence[Any]) -> list[Request]:
    """What ``generate`` submits for them, in order. UsageError as there."""
    return [job.request for job in _jobs(point, instances)]


@dataclass(frozen=True)
class _Job:
    """One text to generate."""

    asked: Asked
    settings: GenerationSettings
    request: Request


def _jobs(point: OperatingPoint, instances: Sequence[Any]) -> list[_Job]:
    jobs = []
    for one, what in zip(instances, identified(instances), strict=True):
        settings = read_settings(one.args[1], f"task {one.task_name!r}")
        what, prompt = _prompt(point, what, one.args[0], settings)
        jobs.append(_Job(what, settings, _request(point, what, prompt, settings)))
    return jobs


def _prompt(
    point: OperatingPoint, what: Asked, context: str, setting: GenerationSettings
) -> tuple[Asked, list[int]]:
    """A context's tokens, cut from the left to leave room for the longest answer."""
    room = point.max_length - setting.max_tokens
    if room < 1:
        raise UsageError(
            f"task {what.task!r}: max_gen_toks {setting.max_tokens} leaves no room for a prompt "
            f"in the model's {point.max_length} positions; lower it with gen_kwargs"
        )
    ids = point.codec.encode(context) or [point.codec.prefix_id]
    kept = ids[-room:]
    return what.with_prompt(len(kept), len(ids) - len(kept), empty=not context), kept


def _request(
    point: OperatingPoint, what: Asked, prompt: list[int], setting: GenerationSettings
) -> Request:
    # A stop that is a special token's text never shows in an answer: it is the token that ends it.
    special = {stop: point.codec.special_id(stop) for stop in setting.stops}
    ends = (*special.values(), point.codec.eos_id)
    return Request(
        id=what.id,
        prompt=prompt,
        max_new_tokens=setting.max_tokens,
        exit=point.policy,
        sampling=point.sampling
        or SamplingParams(setting.temperature, setting.top_k, setting.top_p, point.seed),
        stop_ids=point.model.stop_ids | {token for token in ends if token is not None},
        stop_strings=tuple(stop for stop, token in special.items() if token is None),
        task=what.task,
        doc_id=what.doc_id,
    )


def _run(point: OperatingPoint, requests: list[Request]) -> dict[str, RequestResult]:
    # Special tokens may stand inside a stop string, so it is looked for in the text with them.
    spelled = functools.partial(point.codec.decode, special=True)
    engine = Engine(point.model.network, point.config, detokenize=spelled, observer=point.observer)
    results = {}
    for result in engine.run(requests):
        results[result.id] = result
        if point.advance is not None:
            point.advance(1)
    if point.served is not None:
        point.served(engine)
    return results


def _text(point: OperatingPoint, result: RequestResult, setting: GenerationSettings) -> str:
    text = point.codec.decode(result.tokens)
    return str(postprocess_generated_text(text, list(setting.stops), None))
