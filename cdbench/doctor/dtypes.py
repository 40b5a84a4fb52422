"""What rounding changes: greedy requests in each dtype against a more exact one, and in company.

In float64 a schedule changes nothing. In any other dtype a matrix kernel rounds by the shape of its
batch, so a token may fall the other way where two are nearly equal; from there on a request is
another text. The table says how often, from where on, and how near the two tokens were.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from cdbench.doctor.document import DtypeLine
from cdbench.doctor.services import Subject
from cdbench.doctor.serving import Served, Tell, serve, serve_alone
from cdbench.doctor.work import arriving
from cdbench.models.base import StagedModel, dtype_name
from cdbench.runtime.core import RequestResult
from cdbench.runtime.engine_config import EngineConfig

Load = Callable[[torch.dtype], StagedModel]
"""The same weights in a dtype."""


def dtypes_below(reference: torch.dtype, device: torch.device) -> list[torch.dtype]:
    """The dtypes a model is served in, less exact than the reference; float16 on CUDA only."""
    halves = [torch.float16, torch.bfloat16] if device.type == "cuda" else [torch.bfloat16]
    return [torch.float32, *halves] if reference == torch.float64 else halves


def services(reference: torch.dtype, device: torch.device) -> int:
    """How often every free request is served for the table."""
    return 2 * (1 + len(dtypes_below(reference, device)))


def measure(subject: Subject, load: Load, tell: Tell) -> Iterator[DtypeLine]:
    """The table's lines. The subject is in the reference dtype; only free requests are served."""
    reference, together = _serve_both(subject, tell)
    yield _line(subject.dtype, subject.dtype, reference, together)
    for dtype in dtypes_below(subject.dtype, subject.network.device):
        alone, together = _serve_both(replace(subject, network=load(dtype)), tell)
        yield _line(dtype, subject.dtype, reference, alone.results)
        yield _line(dtype, dtype, alone, together)


def _serve_both(subject: Subject, tell: Tell) -> tuple[Served, dict[str, RequestResult]]:
    """Every free request alone, and all of them in company."""
    requests = subject.work.free
    config = EngineConfig(max_residents=1, kv_layout=subject.layout)
    alone = serve_alone(subject.network, config, requests, tell)
    crowded = subject.crowded(len(requests))
    return alone, serve(subject.network, crowded, arriving(requests), tell)[0]


@dataclass(frozen=True)
class _Pair:
    """One request in two services: where its tokens and depths first differ, and how nearly."""

    token_at: int | None
    depth_at: int | None
    margin: float | None
    gap: float
    """Largest logprob gap before either."""
    compared: int
    """Tokens before one differs."""
    other_depths: int
    """How many of them ran another depth."""

    @staticmethod
    def of(name: str, expected: Served, found: RequestResult) -> _Pair:
        wanted = expected.results[name]
        token_at = _first_difference(wanted.tokens, found.tokens)
        depth_at = _first_difference(wanted.executed_depths, found.executed_depths)
        compared = len(wanted.tokens) if token_at is None else token_at
        same = compared if depth_at is None else min(compared, depth_at)
        pairs = zip(wanted.logprobs[:same], found.logprobs[:same], strict=True)
        gaps = [abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        margin = None if token_at is None else expected.steps[name][token_at].margin
        depths = zip(wanted.executed_depths, found.executed_depths, strict=False)
        other = sum(a != b for a, b in list(depths)[:compared])
        return _Pair(token_at, depth_at, margin, max(gaps, default=0.0), compared, other)


def _line(
    dtype: torch.dtype, against: torch.dtype, expected: Served, found: Mapping[str, RequestResult]
) -> DtypeLine:
    pairs = [_Pair.of(name, expected, result) for name, result in found.items()]
    places = [pair.token_at for pair in pairs if pair.token_at is not None]
    margins = [pair.margin for pair in pairs if pair.margin is not None]
    equal = sum(pair.token_at is None and pair.depth_at is None for pair in pairs)
    logprobs = [value for result in found.values() for value in result.logprobs]
    return DtypeLine(
        dtype=dtype_name(dtype),
        against=dtype_name(against),
        compared="batched with alone" if dtype == against else "dtypes",
        requests=len(pairs),
        same_tokens=1 - len(places) / len(pairs),
        same_tokens_and_depths=equal / len(pairs),
        other_depth=sum(p.other_depths for p in pairs) / max(1, sum(p.compared for p in pairs)),
        diverged=len(places),
        earliest_divergence=min(places, default=None),
        median_divergence=statistics.median(places) if places else None,
        median_margin=statistics.median(margins) if margins else None,
        largest_margin=max(margins, default=None),
        largest_logprob_gap=max(pair.gap for pair in pairs),
        not_finite=sum(not math.isfinite(value) for value in logprobs),
    )


def _first_difference(wanted: list[int], found: list[int]) -> int | None:
    """Where two lists first differ; the end of the shorter counts."""
    for index, (a, b) in enumerate(zip(wanted, found, strict=False)):
        if a != b:
            return index
    shorter, longer = sorted((len(wanted), len(found)))
    return None if shorter == longer else shorter
