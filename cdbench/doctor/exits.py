"""The exit rules on this model: each runs, its signals are numbers, and company changes nothing.

Every rule that suits the model is tried at its default threshold. What thresholds are worth on it
is for an evaluation to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from cdbench.doctor.document import RuleLine
from cdbench.doctor.invariant import Found, Invariant
from cdbench.doctor.services import Services
from cdbench.doctor.serving import Served
from cdbench.doctor.whole import signals
from cdbench.doctor.work import arriving, shortened
from cdbench.grammar import ExitSpec
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.exits import RULES, suits

PROMPTS = 2
"""Requests that each rule is tried on."""
SHARE = 2
"""Their outputs are one of so many parts of what is asked for elsewhere."""


@dataclass(frozen=True)
class _Trial:
    """One rule and its requests, whose ids begin with it."""

    policy: ExitPolicy
    requests: list[Request]

    @property
    def name(self) -> str:
        return str(ExitSpec(self.policy.rule, depth=self.policy.depth))


class Exits:
    """Tries the rules once; ``invariant`` is the check, ``lines`` what each rule did."""

    def __init__(self) -> None:
        self.lines: list[RuleLine] = []
        self.invariant = Invariant("exits", "every rule, in company = alone", self._find, rounds=4)

    def _find(self, services: Services) -> Found:
        if services.subject.dims.max_loops == 1:
            return Found(skipped="one loop leaves nothing to exit from")
        comparison, trials = services.comparison(), list(_trials(services))
        requests = [request for trial in trials for request in trial.requests]
        alone = services.alone(requests)
        crowded = services.subject.crowded(len(requests))
        comparison.add(alone, services.serve(crowded, arriving(requests))[0])
        seen = _signals(services)
        self.lines = [
            _line(trial, alone, services.subject.dims.max_loops, seen) for trial in trials
        ]
        figures = {"rules": len(trials), "not_finite": sum(x.not_finite for x in self.lines)}
        return Found(comparison, {**figures}, broken=_complaint(self.lines, trials))


def _trials(services: Services) -> Iterable[_Trial]:
    dims = services.subject.dims
    few = shortened(services.requests[:PROMPTS], SHARE)
    policies = [
        ExitPolicy(name, rule.default_threshold)
        for name, rule in RULES.items()
        if rule.threshold_range is not None and suits(rule, dims)
    ]
    fixed = ExitPolicy("fixed", depth=-(-dims.max_loops // 2))
    for policy in (ExitPolicy(), fixed, *policies):
        own = [replace(r, id=f"{policy.rule}/{r.id}", exit=policy) for r in few]
        yield _Trial(policy, own)


def _signals(services: Services) -> dict[str, torch.Tensor]:
    """Signals ``[R, T]`` by rule, over whole sequences that ran full depth."""
    found: dict[str, list[torch.Tensor]] = {}
    for request in services.requests[:PROMPTS]:
        ids = [*request.prompt, *services.full.results[request.id].tokens]
        for name, values in signals(services.subject.network, ids).items():
            found.setdefault(name, []).append(values)
    return {name: torch.cat(values, dim=1) for name, values in found.items()}


def _line(trial: _Trial, alone: Served, loops: int, seen: dict[str, torch.Tensor]) -> RuleLine:
    counts = depth_counts([alone.results[r.id] for r in trial.requests], loops)
    values = seen.get(trial.policy.rule, torch.empty(0))
    tokens = sum(counts)
    run = sum(depth * count for depth, count in enumerate(counts, start=1))
    return RuleLine(
        rule=trial.name,
        threshold=trial.policy.threshold,
        tokens=tokens,
        depths=counts,
        mean_depth=run / tokens if tokens else None,
        signals=values.numel(),
        not_finite=int((~torch.isfinite(values)).sum()),
    )


def depth_counts(results: Iterable[RequestResult], loops: int) -> list[int]:
    """How many later tokens ran each depth; entry d − 1 is depth d."""
    counts = [0] * loops
    for result in results:
        for depth in result.executed_depths[1:]:
            counts[depth - 1] += 1
    return counts


def _complaint(lines: list[RuleLine], trials: list[_Trial]) -> str | None:
    for line, trial in zip(lines, trials, strict=True):
        if line.not_finite:
            return f"{line.rule}: {line.not_finite} of {line.signals} signals are NaN or infinite"
        wanted = {"none": len(line.depths), "fixed": trial.policy.depth}.get(trial.policy.rule)
        if wanted is not None and line.tokens != line.depths[wanted - 1]:
            return f"{line.rule}: a token did not run exactly {wanted} loops"
    return None
