"""Gathering what a run's verdict depends on; the weighing is ``validity``'s."""

from __future__ import annotations

from dataclasses import replace

import torch

from cdbench.bench.beyond import measuring_errors
from cdbench.bench.derived import EqualSections
from cdbench.bench.figures import length_ratio
from cdbench.bench.measurements import Measurements
from cdbench.bench.plan import Plan
from cdbench.bench.validity import DepthsFrom, RunFacts, TimedFacts
from cdbench.bench.verdict_facts import live_errors, timed_facts
from cdbench.grammar import parse_depths
from cdbench.machine.unchanged import Unchanged
from cdbench.metrics.trace import Arrivals
from cdbench.schema import Manifest


def watched_files(plan: Plan, started: Manifest) -> Unchanged:
    """cdbench's sources and the models' files, as they are when a run begins."""
    models = [m for m in (plan.model, *plan.dense.values()) if m.files]
    return Unchanged.now(
        {
            file: identity.files[file.name]
            for model, identity in zip(models, started.models, strict=True)
            for file in model.files
        }
    )


def run_facts(
    plan: Plan, measured: Measurements, sections: EqualSections, watched: Unchanged
) -> RunFacts:
    """All that is known of a run that has ended."""
    static = measured.live.get("static")
    ratios = {
        label: ratio
        for label, passed in measured.live.items()
        if (ratio := length_ratio(passed, static)) is not None
    }
    return RunFacts(
        interrupted=measured.interrupted,
        live_errors=live_errors(measured.live),
        refused=[r.error for r in measured.refused if r.error is not None],
        timed=_timed_facts(plan, measured) if "equal" in plan.config.work else None,
        length_ratios=ratios,
        changed_sources=watched.changed_sources(),
        changed_models=watched.changed_models(),
        environment=[run.environment for run in measured.timed if run.environment is not None],
        compute_threads=compute_threads(plan),
        reasons=[
            *([f"an error ended it: {measured.failure}"] if measured.failure else []),
            *measured.findings.invalid,
            *measured.other_work,
        ],
        flags=[
            *measured.findings.flags,
            *measured.flags,
            *_moved(measured),
            *measuring_errors(sections.bounds, sections.waterfall or {}),
        ],
    )


def _moved(measured: Measurements) -> list[str]:
    """Modes that lost time to host memory: the schedule alone does not explain their walls."""
    moved: dict[str, int] = {}
    for run in measured.timed:
        if run.trace.kv is not None and run.trace.kv.preemptions:
            moved[run.trace.mode] = max(moved.get(run.trace.mode, 0), run.trace.kv.preemptions)
    return [
        f"mode {mode}: KV rows ran out, and requests were moved to host memory up to {count} times "
        "a run; that is in its wall"
        for mode, count in moved.items()
    ]


def compute_threads(plan: Plan) -> int:
    """Host threads that a launch keeps busy: one feeds a GPU."""
    return 1 if plan.model.network.device.type == "cuda" else torch.get_num_threads()


def _timed_facts(plan: Plan, measured: Measurements) -> TimedFacts:
    slo = plan.config.slo
    limited = any(limit is not None for limit in (slo.ttft_s, slo.tpot_s, slo.e2e_s))
    adaptive = {label for label, subject in measured.subjects.items() if subject.adaptive}
    return replace(
        timed_facts(measured.timed, measured.workload, adaptive, measured.characters_per_token),
        depths_from=_depths_from(plan),
        shows_latency=limited or measured.arrivals.kind != Arrivals.ALL_AT_ONCE,
    )


def _depths_from(plan: Plan) -> DepthsFrom:
    if parse_depths(plan.config.workload.depths).synthetic:
        return "synthetic"
    return "live" if plan.trace is None else "trace"
