"""From measurements to the result: metrics, speed-ups, bounds, accuracy, validity."""

from __future__ import annotations

from cdbench import manifest
from cdbench.bench.accuracy import accuracy_of
from cdbench.bench.compared import compare, flop_bounds
from cdbench.bench.equal import TimedRun, unequal_work, workload_hash
from cdbench.bench.plan import Plan
from cdbench.bench.rows import mode_result
from cdbench.bench.session import Measurements
from cdbench.metrics.bounds import cost_ratio
from cdbench.metrics.identities import broken_identities
from cdbench.metrics.rates import decode_wall_s
from cdbench.metrics.registry import evaluate
from cdbench.runtime.kv_cache import slots_of_layout
from cdbench.schema import (
    REQUESTS_FILE,
    BlockRecord,
    Manifest,
    ModelFacts,
    Result,
    Validity,
    Workload,
)
from cdbench.stats.blocks import MIN_BLOCKS


def summarise(plan: Plan, measured: Measurements, started: Manifest) -> Result:
    """The whole result of a run, finished or interrupted."""
    comparisons = compare(measured.timed)
    return Result(
        status="interrupted" if measured.interrupted else "complete",
        validity=judge(plan, measured),
        manifest=started,
        config=plan.config.model_dump(mode="json"),
        workload=_workload(plan, measured),
        modes={label: mode_result(plan, measured, label) for label in _labels(plan, measured)},
        blocks=[_block(run) for run in measured.timed],
        comparisons=comparisons,
        bounds=flop_bounds(measured.timed, measured.workload, comparisons),
        accuracy=accuracy_of(measured.live),
        files={"requests": REQUESTS_FILE} if measured.live or measured.timed else {},
        model=model_facts(plan),
    )


def start_manifest(plan: Plan) -> Manifest:
    """What this run runs on; taken before anything is measured."""
    models = [plan.model, *plan.dense.values()]
    return manifest.collect(
        [manifest.identify(m.name, m.files) for m in models if m.files],
        device=str(plan.model.network.device),
    )


def judge(plan: Plan, measured: Measurements) -> Validity:
    """VALID, or INVALID with every reason."""
    reasons = []
    if measured.interrupted:
        reasons.append("the run was interrupted before it was complete")
    reasons += _live_failures(measured)
    if measured.refused:
        refused = measured.refused
        reasons.append(f"{len(refused)} workload requests were refused ({refused[0].error})")
    if "equal" in plan.config.work and not measured.interrupted:
        reasons += unequal_work(measured.timed, measured.workload)
        reasons += [why for run in measured.timed for why in broken_identities(run.trace)]
        blocks = len({run.block for run in measured.timed})
        if blocks < MIN_BLOCKS:
            timed = f"{blocks} block was" if blocks == 1 else f"{blocks} blocks were"
            reasons.append(f"{timed} timed; an interval needs {MIN_BLOCKS}")
    return Validity(verdict="INVALID" if reasons else "VALID", reasons=reasons)


def _live_failures(measured: Measurements) -> list[str]:
    reasons = []
    for label, passed in measured.live.items():
        failed = [r for r in passed.results if r.error is not None]
        if failed:
            reasons.append(f"live {label}: {len(failed)} requests were refused ({failed[0].error})")
    return reasons


def _labels(plan: Plan, measured: Measurements) -> list[str]:
    known = {*measured.live, *(run.subject.label for run in measured.timed)}
    ordered = [str(mode) for mode in plan.modes if str(mode) in known]
    return [*ordered, *(label for label in sorted(known) if label not in ordered)]


def _block(run: TimedRun) -> BlockRecord:
    return BlockRecord(
        index=run.block,
        order=run.order,
        mode=run.subject.label,
        wall_s=run.trace.wall_s,
        decode_wall_s=decode_wall_s(run.trace),
        metrics=evaluate(run.trace),
    )


def _workload(plan: Plan, measured: Measurements) -> Workload:
    recorded = measured.workload
    return Workload(
        hash=workload_hash(recorded),
        source=plan.config.workload.source,
        requests=len(recorded),
        prompt_tokens=sum(len(r.prompt) for r in recorded),
        output_tokens=sum(len(r.tokens) for r in recorded),
        arrivals=plan.config.workload.arrivals,
        seed=plan.config.workload.seed,
        replayed=["tokens", "lengths", "depths"] if recorded else [],
    )


def model_facts(plan: Plan) -> ModelFacts:
    """The static facts of the looped model, printed before any number."""
    network, dims = plan.model.network, plan.model.network.dims
    costs = network.flops_per_token()
    layers = dims.prelude_layers + dims.coda_layers
    slots = slots_of_layout(plan.kv_layout, plan.max_loops)
    row = 2 * dims.kv_heads * dims.head_dim * network.dtype.itemsize
    return ModelFacts(
        name=plan.model.name,
        model_type=dims.model_type,
        parameters=network.parameter_count(),
        max_loops=plan.max_loops,
        cost_ratio=cost_ratio(costs),
        kv_bytes_per_token=row * (layers + slots * dims.core_layers),
        kv_layout=plan.kv_layout,
        dtype=str(network.dtype).removeprefix("torch."),
        device=str(network.device),
        random_weights_seed=plan.model.weight_seed,
        notes=list(plan.notes),
    )
