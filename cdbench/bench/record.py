"""``cdbench record``: a live run with ghost loops, and how well other thresholds follow from it.

The run is live in mode ``cdb`` at the threshold q that the configuration names: the workload's own
requests, the model's own tokens and exits. Ghost loops add the exit rule's signal beyond every
exit. From the signals follow depths at any other threshold, without the model. They are exact at q;
elsewhere earlier tokens would have left other keys and values behind, so the depths are compared
with live runs on the same tokens and the agreement is kept with the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdbench import manifest
from cdbench.bench.equal import RecordedRequest, record
from cdbench.bench.measurements import Progress
from cdbench.bench.plan import Plan
from cdbench.bench.workload import TimedWork
from cdbench.errors import RequestRefused, UsageError
from cdbench.grammar import Mode
from cdbench.models.base import dtype_name
from cdbench.runtime.core import ExitPolicy, FloatArray, IntArray, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.ghost import GhostEngine
from cdbench.runtime.results import Detokenize
from cdbench.schema import ExitSettings, Manifest, WorkloadRecord
from cdbench.schema.recording import AgreementRecord, Recording
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.identity import workload_hash
from cdbench.workloads.recording import Recorded, check_recordable, default_thresholds, derive
from cdbench.workloads.recording_files import sealed
from cdbench.workloads.signals_file import pack_signals

CDB = Mode("cdb")


@dataclass(frozen=True)
class Packed:
    """A recording ready to be written, and the bytes of the signals beside it."""

    recorded: Recorded
    signals_npz: bytes


def check_record(plan: Plan, work: TimedWork, thresholds: Sequence[float] | None) -> None:
    """Raise UsageError, before anything runs, for what cannot be recorded or compared."""
    if plan.trace is not None:
        raise UsageError("record: the exit rule is a trace, so nothing new is seen; name a rule")
    check_recordable(plan.policy)
    if work.random_prompts:
        raise UsageError(
            "record: random token ids are no text, so the depths they lead to mean nothing; name "
            "a workload.source of text"
        )
    if plan.config.workload.depths != "recorded":
        raise UsageError(
            f"workload.depths: {plan.config.workload.depths} is not recorded but drawn; drop it"
        )
    for threshold in thresholds or ():
        check_policy(_at(plan.policy, threshold), plan.model.network.dims, plan.max_loops)


def make_recording(
    plan: Plan, work: TimedWork, thresholds: Sequence[float] | None, progress: Progress
) -> Packed:
    """Run the workload live with ghosts, then at each threshold without, tokens forced.

    ``thresholds`` None takes some at which depths differ. Raises RequestRefused where one of the
    requests cannot be served, UsageError where none produced a token.
    """
    model = manifest.identify(plan.model.name, plan.model.files)
    started = manifest.collect([model], device=str(plan.model.network.device))
    requests = work.requests
    progress.phase("recording", len(requests))
    engine = GhostEngine(plan.model.network, _settings(plan), detokenize=_detokenize(plan))
    results = _serve(engine, requests, progress)
    _refuse(results)
    made = [r for request in requests if (r := record(request, results[request.id])) is not None]
    if not made:
        raise UsageError("record: no request produced a token, so there is nothing to replay")
    signals = [engine.signals.of(results[r.id]) for r in made]
    if thresholds is None:
        thresholds = default_thresholds(signals, plan.policy)
    compared = [_agreement(plan, made, signals, x, progress) for x in thresholds]
    return _pack(plan, made, signals, compared, started, [*plan.notes, *work.notes])


def _settings(plan: Plan) -> EngineConfig:
    """As for timed work: prompt prefixes are not reused unless that is asked for."""
    return plan.settings(plan.subject(CDB), live=False)


def _detokenize(plan: Plan) -> Detokenize | None:
    """Text, for stop strings; a model without a tokenizer has none."""
    return plan.model.decode if plan.model.tokenizer is not None else None


def _serve(
    engine: Engine, requests: Sequence[Request], progress: Progress
) -> dict[str, RequestResult]:
    results = {}
    # When they arrive changes no token; all at once is quickest.
    for result in engine.run(replace(request, arrival_s=0.0) for request in requests):
        results[result.id] = result
        progress.advance(1)
    return results


def _refuse(results: dict[str, RequestResult]) -> None:
    failed = [r for r in results.values() if r.error is not None]
    if failed:
        raise RequestRefused(
            f"{len(failed)} of {len(results)} requests refused: request {failed[0].id!r} "
            f"{failed[0].error}"
        )


def _at(policy: ExitPolicy, threshold: float) -> ExitPolicy:
    return replace(policy, threshold=threshold)


def _agreement(
    plan: Plan,
    made: Sequence[RecordedRequest],
    signals: Sequence[FloatArray],
    threshold: float,
    progress: Progress,
) -> AgreementRecord:
    """Depths derived for a threshold against those of a live run at it, on the same tokens."""
    policy = _at(plan.policy, threshold)
    progress.phase(f"live at {threshold:g}", len(made))
    forced = [
        Request(id=r.id, prompt=r.prompt, exit=policy, force=r.tokens, task=r.task, doc_id=r.doc_id)
        for r in made
    ]
    results = _serve(Engine(plan.model.network, _settings(plan)), forced, progress)
    live = [np.array(results[r.id].executed_depths[1:], np.int64) for r in made]
    derived = [derive(s, policy).executed for s in signals]
    return agreement(threshold, np.concatenate(derived), np.concatenate(live))


def agreement(threshold: float, derived: IntArray, live: IntArray) -> AgreementRecord:
    """How two lists of depths, one a token, agree; null throughout where there is no token."""
    if not derived.size:
        return AgreementRecord(
            threshold=threshold,
            tokens=0,
            equal=None,
            mean_difference=None,
            mean_depth_derived=None,
            mean_depth_live=None,
        )
    return AgreementRecord(
        threshold=threshold,
        tokens=derived.size,
        equal=float((derived == live).mean()),
        mean_difference=float(np.abs(derived - live).mean()),
        mean_depth_derived=float(derived.mean()),
        mean_depth_live=float(live.mean()),
    )


def _pack(
    plan: Plan,
    made: Sequence[RecordedRequest],
    signals: Sequence[FloatArray],
    compared: list[AgreementRecord],
    started: Manifest,
    notes: list[str],
) -> Packed:
    network, policy = plan.model.network, plan.policy
    dtype = dtype_name(network.dtype)
    stored, content = pack_signals(
        signals, plan.max_loops, "float64" if dtype == "float64" else "float32"
    )
    document = Recording(
        marks=marks_of(plan),
        notes=list(dict.fromkeys(notes)),
        model=started.models[0],
        weight_seed=plan.model.weight_seed,
        layers=plan.model.layers,
        exit=ExitSettings(
            rule=policy.rule,
            threshold=policy.threshold,
            min_loops=policy.min_loops,
            lag=policy.lag,
        ),
        max_loops=plan.max_loops,
        kv_layout=plan.kv_layout,
        dtype=dtype,
        device=network.device.type,
        workload_hash=workload_hash(made, ArrivalSchedule()),
        source=plan.config.workload.source,
        signals=stored,
        agreement=compared,
        config=plan.config.model_dump(mode="json"),
        manifest=started,
        requests=[WorkloadRecord.of(r) for r in made],
    )
    return Packed(Recorded(sealed(document), tuple(signals)), content)


def marks_of(plan: Plan) -> list[str]:
    """What in the recording is not the model's own doing."""
    marks = []
    if plan.model.weight_seed is not None:
        marks.append(f"random weights (seed {plan.model.weight_seed}): depths mean nothing")
    if plan.model.layers is not None:
        marks.append(f"layers {plan.model.layers} in place of the model's own")
    if plan.config.state_init == "random":
        marks.append(f"initial states are random (seed {plan.config.sampling.seed})")
    return marks
