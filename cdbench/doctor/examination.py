"""The course of an examination: load, choose a dtype and requests, check, measure rounding.

The invariants are checked in float64, where they hold exactly, unless a dtype is asked for or the
weights would be larger than ``SMALL_BYTES`` in it. The dtype table compares with float64 or, for
such a model, with float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pydantic import JsonValue

from cdbench.config import RunConfig, check_exit
from cdbench.doctor import dtypes
from cdbench.doctor.checks import CHECKS, STAGES
from cdbench.doctor.document import Check, DoctorDocument, DtypeLine
from cdbench.doctor.exits import Exits, depth_counts
from cdbench.doctor.invariant import Invariant, not_run, run_check
from cdbench.doctor.measuring import measure_machine
from cdbench.doctor.services import ROUNDINGS, Services, Subject
from cdbench.doctor.stages import facts
from cdbench.doctor.work import Work, choose
from cdbench.errors import UsageError
from cdbench.grammar import ExitSpec
from cdbench.manifest import collect
from cdbench.models.base import StagedModel, dtype_name
from cdbench.models.loading import LoadedModel, load_model
from cdbench.runtime.core import ExitPolicy
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.exits import RULES
from cdbench.workloads.resolve import exit_policy, kv_layout

if TYPE_CHECKING:
    from cdbench.bench.measurements import Progress

SMALL_BYTES = 2_000_000_000
"""Most bytes of float64 weights of a model that is examined in float64."""


@dataclass(frozen=True)
class Extent:
    """How much is served."""

    requests: int
    new_tokens: int


SMALL_EXTENT = Extent(requests=8, new_tokens=20)
LARGE_EXTENT = Extent(requests=4, new_tokens=8)


@dataclass(frozen=True)
class Asked:
    """What a person may ask for beyond the configuration; None where they did not."""

    prompts_file: str | None = None
    requests: int | None = None
    new_tokens: int | None = None
    machine: bool = False
    """Whether what this machine can measure is found out too."""


def examine(config: RunConfig, asked: Asked, progress: Progress) -> DoctorDocument:
    """Examine a model. UsageError, before anything has run, for what is wrong with the asking."""
    started = time.perf_counter()
    weights = _Weights(config)
    model = weights.examined
    policy = _policy(config, model)
    layout = kv_layout(config, model)
    extent = _extent(asked, weights.is_small)
    work = choose(model, policy, asked.prompts_file, extent.requests, extent.new_tokens)
    subject = Subject(model.network, policy, layout, work)
    device = str(model.network.device)
    measuring = measure_machine(device) if asked.machine else None
    services = Services(subject, progress.advance)
    exits = Exits()
    checks = _checks(services, exits, progress)
    failed = any(check.verdict == "fail" for check in checks)
    unread = services.stages.unread if services.has("stages") else None
    return DoctorDocument(
        model=model.name,
        verdict="fail" if failed else "pass",
        config=_settings(config, services, weights, extent),
        machine=collect(device=device),
        measuring=measuring,
        facts=facts(model.network, layout, unread),
        checks=checks,
        depths=_depths(services),
        rules=exits.lines,
        # With a broken invariant there is nothing to tell rounding from.
        dtypes=[] if failed else _dtypes(subject, weights, progress),
        notes=_notes(model, work, policy, weights),
        wall_s=round(time.perf_counter() - started, 1),
    )


class _Weights:
    """One model's weights in several dtypes: always the same numbers, rounded once."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        model = self._load(config.dtype)
        self.is_small = model.network.parameter_count() * 8 <= SMALL_BYTES
        self.reference = torch.float64 if self.is_small else torch.float32
        wanted = self.reference if config.dtype == "auto" and self.is_small else model.network.dtype
        if model.network.dtype != wanted:
            model = self._load(dtype_name(wanted))
        self.examined = model
        self._refill(model.network)

    def at(self, dtype: torch.dtype) -> StagedModel:
        """The network in a dtype; the one that is examined where it has it."""
        if dtype == self.examined.network.dtype:
            return self.examined.network
        network = self._load(dtype_name(dtype)).network
        self._refill(network)
        return network

    def _load(self, dtype: str) -> LoadedModel:
        config = self._config
        return load_model(
            config.model, dtype=dtype, device=config.device, weight_seed=config.weight_seed
        )

    @torch.no_grad()
    def _refill(self, network: StagedModel) -> None:
        """Random weights are other numbers in every dtype: take those of the reference."""
        if self._config.weight_seed is None or network.dtype == self.reference:
            return
        source = self._load(dtype_name(self.reference)).network
        for target, value in zip(network.parameters(), source.parameters(), strict=True):
            target.copy_(value)


def _policy(config: RunConfig, model: LoadedModel) -> ExitPolicy:
    spec = config.exit.spec
    if spec is not None and spec.rule == "trace":
        raise UsageError("exit rule 'trace': doctor tries the live rule; name another")
    if spec is not None:
        check_exit(spec.rule, spec.threshold, RULES)
    policy = exit_policy(config, model, None)
    if policy.lookahead is not None:
        raise UsageError(
            "exit rule 'lookahead': doctor tries rules by themselves; name "
            f"{policy.rule}@{policy.threshold:g}, and judge the gate with `cdbench predictor judge`"
        )
    check_policy(policy, model.network.dims, model.network.dims.max_loops)
    return policy


def _extent(asked: Asked, is_small: bool) -> Extent:
    usual = SMALL_EXTENT if is_small else LARGE_EXTENT
    return Extent(asked.requests or usual.requests, asked.new_tokens or usual.new_tokens)


def _checks(services: Services, exits: Exits, progress: Progress) -> list[Check]:
    checks: list[Check] = []
    invariants: Sequence[Invariant] = (*CHECKS, exits.invariant)
    for number, invariant in enumerate(invariants, start=1):
        if any(c.name == STAGES.name and c.verdict == "fail" for c in checks):
            why = "not run: the stages are not what the model declares"
            checks.append(not_run(invariant, why))
            continue
        units = invariant.rounds * len(services.requests)
        progress.phase(f"check {number} of {len(invariants)}: {invariant.name}", units)
        checks.append(run_check(invariant, services))
    return checks


def _depths(services: Services) -> list[int] | None:
    if not services.has("own"):
        return None
    own = [services.own.results[request.id] for request in services.subject.work.free]
    return depth_counts(own, services.subject.dims.max_loops)


def _dtypes(subject: Subject, weights: _Weights, progress: Progress) -> list[DtypeLine]:
    if not subject.work.free:
        return []
    reference = weights.at(weights.reference)
    count = len(subject.work.free) * dtypes.services(weights.reference, reference.device)
    progress.phase("what rounding changes", count)
    exact = Subject(reference, subject.policy, subject.layout, subject.work)
    return list(dtypes.measure(exact, weights.at, progress.advance))


def _settings(
    config: RunConfig, services: Services, weights: _Weights, extent: Extent
) -> dict[str, JsonValue]:
    subject = services.subject
    policy = subject.policy
    return {
        "exit": str(ExitSpec(policy.rule, policy.threshold, policy.depth)),
        "kv": subject.layout,
        "R": subject.dims.max_loops,
        "dtype": dtype_name(subject.dtype),
        "tolerance": services.tolerance.share if services.has("tolerance") else None,
        "reference_dtype": dtype_name(weights.reference),
        "device": subject.network.device.type,
        "weights": config.weights,
        "prompts": subject.work.source,
        "requests": len(subject.work.free),
        "probes": len(subject.work.probes),
        "max_new_tokens": extent.new_tokens,
    }


def _notes(model: LoadedModel, work: Work, policy: ExitPolicy, weights: _Weights) -> list[str]:
    notes = []
    if model.weight_seed is not None:
        notes.append(f"random weights (seed {model.weight_seed}): tokens and exits mean nothing")
    if work.is_random:
        notes.append("random token ids: exits mean nothing")
    if policy.rule == "none" and model.network.dims.max_loops > 1:
        notes.append(
            "the rule is none: only in the check `exits` does a token exit early; choose another "
            "by --exit"
        )
    if not weights.is_small:
        notes.append("too large for float64: the table's reference is float32")
    if model.network.dtype != torch.float64:
        notes.append(
            f"checked in {dtype_name(model.network.dtype)}, where a batch rounds by its shape: "
            f"a difference of up to {ROUNDINGS:g} times what rounding does to this model's logits "
            "is counted, not judged"
        )
    return notes
