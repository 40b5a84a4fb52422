"""What the checks share: the model, the requests, and the services that several are held to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from cdbench.doctor.comparison import EXACT, Comparison, Tolerance
from cdbench.doctor.serving import Served, Tell, serve, serve_alone
from cdbench.doctor.stages import StageReport, walk
from cdbench.doctor.whole import rounding_noise
from cdbench.doctor.work import Work, shortened, under
from cdbench.models.base import ModelDims, StagedModel
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig

MOST_RESIDENTS = 64
SMALL_WIDTH = 3
NOISE_SAMPLES = 4
"""Sequences on which the effect of rounding is measured."""
ROUNDINGS = 4.0
"""Differences of so many times that effect are put down to rounding."""


@dataclass(frozen=True)
class Subject:
    """What is examined: a network, the rule and layout it is to be served with, and requests."""

    network: StagedModel
    policy: ExitPolicy
    layout: str
    work: Work

    @property
    def dims(self) -> ModelDims:
        return self.network.dims

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def together(self, requests: int) -> EngineConfig:
        """Everyone at once, under continuous depth batching."""
        return EngineConfig(max_residents=min(requests, MOST_RESIDENTS), kv_layout=self.layout)

    def crowded(self, requests: int) -> EngineConfig:
        """Fewer places than requests, narrow launches, codas that wait, prompts in pieces."""
        cap = max(1, min(requests, MOST_RESIDENTS) // 2)
        width = min(cap, SMALL_WIDTH)
        return EngineConfig(
            max_residents=cap,
            width=width,
            coda_min_rows=min(2, width),
            prefill_tokens=8,
            min_free_residents=1,
            kv_layout=self.layout,
        )


class Services:
    """Serves a subject. Services that more than one check needs are run once."""

    def __init__(self, subject: Subject, tell: Tell) -> None:
        self.subject = subject
        self.tell = tell

    @property
    def requests(self) -> tuple[Request, ...]:
        """Under the rule that is examined."""
        return self.subject.work.requests

    @cached_property
    def stages(self) -> StageReport:
        """One prompt walked through the stages, without an engine."""
        return walk(self.subject.network, self.requests[0].prompt)

    @cached_property
    def full_requests(self) -> list[Request]:
        """The same, but every token runs full depth."""
        return under(self.requests, ExitPolicy())

    @cached_property
    def full(self) -> Served:
        """Each request alone at full depth, in layout ``per-loop``, with all its logits."""
        config = EngineConfig(mode="static", max_residents=1)
        return serve_alone(
            self.subject.network, config, self.full_requests, self.tell, keep_logits=True
        )

    @cached_property
    def full_here(self) -> Served:
        """The same in the layout that is examined."""
        if self.subject.layout == "per-loop":
            return self.full
        return self.alone(self.full_requests)

    @cached_property
    def own(self) -> Served:
        """Each request alone, under the rule and in the layout that are examined."""
        if self.subject.policy.rule == "none":
            return self.full_here
        return self.alone(self.requests)

    def has(self, what: str) -> bool:
        """Whether a shared service was run: a failed check may have come before it."""
        return what in vars(self)

    def alone(self, requests: Sequence[Request]) -> Served:
        """Each of these requests in an engine of its own, in the layout that is examined."""
        config = EngineConfig(max_residents=1, kv_layout=self.subject.layout)
        return serve_alone(self.subject.network, config, requests, self.tell)

    def serve(
        self, config: EngineConfig, requests: Sequence[Request], network: StagedModel | None = None
    ) -> tuple[dict[str, RequestResult], Engine]:
        """Serve requests together."""
        return serve(network or self.subject.network, config, requests, self.tell)

    @cached_property
    def tolerance(self) -> Tolerance:
        """What counts as the same: exact in float64, else what rounding does to this model."""
        if self.subject.dtype == torch.float64:
            return EXACT
        samples = (*self.subject.work.probes, *self.subject.work.free)[:NOISE_SAMPLES]
        noise = [
            rounding_noise(self.subject.network, [*request.prompt, *(request.force or ())])
            for request in samples
        ]
        return Tolerance(ROUNDINGS * max(noise))

    def comparison(self) -> Comparison:
        """An empty comparison at the subject's tolerance."""
        return Comparison(self.tolerance)

    def layouts(self, policy: ExitPolicy, names: Sequence[str]) -> dict[str, Served]:
        """Short requests under one policy, served together in each of these layouts."""
        requests = under(self.short_requests, policy)
        config = self.subject.together(len(requests))
        return {
            name: Served(self.serve(replace(config, kv_layout=name), requests)[0]) for name in names
        }

    @cached_property
    def short_requests(self) -> list[Request]:
        """With half of their output: enough where nothing depends on its length."""
        return shortened(self.requests, 2)
