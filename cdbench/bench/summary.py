"""From measurements to the result: metrics, speed-ups, bounds, accuracy, validity."""

from __future__ import annotations

from cdbench import manifest
from cdbench.bench.accuracy import accuracy_of, sample_files
from cdbench.bench.derived import EqualWork, break_evens, equal_sections, exits_of, looks_of
from cdbench.bench.facts import facts_of
from cdbench.bench.judging import compute_threads, run_facts
from cdbench.bench.measurements import Measurements
from cdbench.bench.memory_held import equal_memory_of
from cdbench.bench.plan import Plan
from cdbench.bench.rows import mode_result
from cdbench.bench.scores import scores_of
from cdbench.bench.validity import judge
from cdbench.bench.workload import TimedWork
from cdbench.grammar import parse_depths
from cdbench.machine.summary import summarise as summarise_machine
from cdbench.machine.unchanged import Unchanged
from cdbench.metrics.bounds import cost_ratio
from cdbench.models.base import dtype_name
from cdbench.models.compiled import compile_seconds
from cdbench.runtime.attention.backends import choose_backend
from cdbench.runtime.cache_shape import cache_shape
from cdbench.schema import (
    LAUNCHES_FILE,
    REPEATS_FILE,
    REQUESTS_FILE,
    STAGE_PASSES_FILE,
    WORKLOAD_FILE,
    Manifest,
    ModelFacts,
    Result,
    Workload,
)
from cdbench.stats.blocks import LEVEL
from cdbench.workloads.identity import workload_hash
from cdbench.workloads.synthetic_depths import mark


def summarise(
    plan: Plan,
    work: TimedWork | None,
    measured: Measurements,
    started: Manifest,
    watched: Unchanged,
) -> Result:
    """The whole result of a run, finished or interrupted."""
    repeats = plan.config.repeats
    looks = looks_of(measured.timed, repeats.blocks, repeats.interval)
    equal = EqualWork.of(
        measured.timed,
        {label: facts_of(subject) for label, subject in measured.subjects.items()},
        measured.workload,
        plan.config.engine.prefill_tokens,
        measured.stages,
        LEVEL if looks is None else looks.level,
        measured.stage_passes,
    )
    sections = equal_sections(equal)
    seen = [run.environment for run in measured.timed if run.environment is not None]
    return Result(
        status="interrupted" if measured.interrupted else "complete",
        validity=judge(run_facts(plan, measured, sections, watched)),
        manifest=started,
        config=plan.config.model_dump(mode="json"),
        workload=workload_facts(plan, work, measured),
        modes={
            label: mode_result(plan, measured, label, equal.runs, equal.level)
            for label in _labels(plan, measured)
        },
        **vars(sections),
        break_even=break_evens(plan.config.price_per_hour, sections.comparisons),
        looks=looks,
        equal_memory=equal_memory_of(
            measured.timed, plan.kv_budget_bytes if plan.config.equal == "memory" else None
        ),
        environment=summarise_machine(seen, compute_threads(plan)) if seen else None,
        accuracy=accuracy_of(measured.live, plan.suite.hash if plan.suite is not None else None),
        scores=scores_of(measured.live),
        samples=sample_files(measured.live),
        exits=exits_of(
            measured.live,
            measured.timed,
            {label: subject.max_loops for label, subject in measured.subjects.items()},
        ),
        files=raw_files(plan, measured),
        model=model_facts(plan),
        stages=measured.stages.model_dump(mode="json") if measured.stages is not None else None,
    )


def start_manifest(plan: Plan) -> Manifest:
    """What this run runs on; taken before anything is measured."""
    models = [plan.model, *plan.dense.values()]
    collected = manifest.collect(
        [manifest.identify(m.name, m.files) for m in models if m.files],
        device=str(plan.model.network.device),
    )
    given = plan.config.model_dump(mode="json", exclude_unset=True)
    return collected.model_copy(update={"given": given})


def raw_files(plan: Plan, measured: Measurements) -> dict[str, str]:
    """The files of raw records that a run with these measurements leaves, by what they hold.

    Stage curves that were read from a file have no passes here.
    """
    files: dict[str, str] = {}
    if measured.live or measured.timed:
        files |= {"requests": REQUESTS_FILE, "repeats": REPEATS_FILE}
    if measured.workload:
        files |= {"workload": WORKLOAD_FILE}
    if measured.timed:
        files |= {"launches": LAUNCHES_FILE}
    if measured.stages is not None and plan.config.stages == "measure":
        files |= {"stages": STAGE_PASSES_FILE}
    return files


def _labels(plan: Plan, measured: Measurements) -> list[str]:
    known = {*measured.live, *(run.trace.mode for run in measured.timed)}
    ordered = [str(mode) for mode in plan.modes if str(mode) in known]
    return [*ordered, *(label for label in sorted(known) if label not in ordered)]


def workload_facts(plan: Plan, work: TimedWork | None, measured: Measurements) -> Workload:
    """The workload in figures, with its hash."""
    recorded = measured.workload
    depths, seed = parse_depths(plan.config.workload.depths), plan.config.workload.seed
    return Workload(
        hash=workload_hash(recorded, measured.arrivals),
        source=plan.config.workload.source,
        requests=len(recorded),
        prompt_tokens=sum(len(r.prompt) for r in recorded),
        output_tokens=sum(len(r.tokens) for r in recorded),
        arrivals=plan.config.workload.arrivals,
        seed=seed,
        replayed=_replayed(depths.synthetic) if recorded else [],
        synthetic=mark(depths, seed) if depths.synthetic else None,
        notes=list(work.notes) if work is not None else [],
    )


def _replayed(synthetic: bool) -> list[str]:
    return ["tokens", "lengths"] if synthetic else ["tokens", "lengths", "depths"]


def model_facts(plan: Plan) -> ModelFacts:
    """The static facts of the looped model, printed before any number."""
    network, dims = plan.model.network, plan.model.network.dims
    shape = cache_shape(dims, plan.kv_layout, plan.max_loops, network.dtype)
    return ModelFacts(
        name=plan.model.name,
        model_type=dims.model_type,
        parameters=network.parameter_count(),
        max_loops=plan.max_loops,
        cost_ratio=cost_ratio(network.flops_per_token()),
        kv_bytes_per_token=shape.position_bytes,
        kv_layout=plan.kv_layout,
        dtype=dtype_name(network.dtype),
        device=str(network.device),
        attention=choose_backend(plan.config.engine.attention, network.device),
        compile_s=compile_seconds(network),
        random_weights_seed=plan.model.weight_seed,
        notes=list(plan.notes),
    )
