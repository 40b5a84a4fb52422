"""``cdbench predictor judge``: a gate at work, beside its rule at lag 0 and at lag 1.

The model's own text under the rule at lag 0, with a floor of at least the earliest depth that the
gate can call, is forced on the two late runs: the rule alone at lag 1, and with the gate. Ghost
loops beyond the gate's exits tell what the rule would have asked for, so that a call that came too
early is known by how many loops. Requests that the gate was fitted or calibrated on are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cdbench import manifest
from cdbench.bench.equal import record
from cdbench.bench.measurements import Progress
from cdbench.bench.plan import Plan
from cdbench.bench.record import check_record, marks_of
from cdbench.bench.workload import TimedWork
from cdbench.errors import RequestRefused, UsageError
from cdbench.grammar import Mode
from cdbench.metrics.predictor import count_calls, stretches
from cdbench.predictor.decisions import Tokens, first_met, summarise
from cdbench.predictor.fit import prompt_key
from cdbench.predictor.gate_files import StoredGate
from cdbench.predictor.recording import recording_policy
from cdbench.runtime.core import BoolArray, ExitPolicy, FloatArray, IntArray, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.ghost import GhostEngine
from cdbench.schema.lookahead import GateJudgement, PositionFigures
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.identity import workload_hash
from cdbench.workloads.recording import met_tests


def check_judgeable(plan: Plan, work: TimedWork) -> None:
    """Raise UsageError, before anything runs, for a workload that says nothing of a gate."""
    check_record(replace(plan, policy=recording_policy(plan.policy)), work, None)


def unseen(requests: Sequence[Request], stored: StoredGate, most: int) -> list[Request]:
    """At most so many requests that the gate was not fitted on. UsageError where none is left."""
    known = set(stored.document.trained_on.prompts)
    left = [request for request in requests if prompt_key(request.prompt) not in known]
    if not left:
        raise UsageError(
            f"predictor: {stored.source} was fitted on all {len(requests)} requests of this "
            "workload; name more with --requests, or another workload"
        )
    return left[:most]


def judge(
    plan: Plan, stored: StoredGate, requests: Sequence[Request], progress: Progress
) -> GateJudgement:
    """Run the three policies of a plan whose exit rule is the gate's.

    Raises RequestRefused where a request cannot be served, UsageError where none has later tokens.
    """
    gate = plan.policy.lookahead
    assert gate is not None, "the plan's rule is lookahead"
    lag0 = recording_policy(plan.policy, gate.earliest)
    late = replace(lag0, lag=1)
    document = stored.document
    started = manifest.collect([document.setting.model], device=str(plan.model.network.device))
    first = _serve(plan, requests, lag0, None, progress, "at lag 0")
    kept = [r for r in requests if len(first[r.id].tokens) > 1]
    if not kept:
        raise UsageError("predictor: no request has a later token, so there is nothing to judge")
    tokens = {r.id: first[r.id].tokens for r in kept}
    alone = _serve(plan, kept, late, tokens, progress, "at lag 1")
    signals: dict[str, FloatArray] = {}
    gated = _serve(
        plan, kept, replace(late, lookahead=gate), tokens, progress, "with the gate", signals
    )
    met = met_tests(np.concatenate([signals[r.id] for r in kept]), lag0)
    loops = plan.max_loops
    due = Tokens(
        states=np.zeros((0, 0, 0), np.float32),
        signals=np.concatenate([signals[r.id] for r in kept]),
        met=met,
        due=first_met(met, lag0.min_loops),
        requests=len(kept),
        floor=lag0.min_loops,
    )
    called = np.concatenate([_called(gated[r.id]) for r in kept])
    executed = _executed(gated, kept)
    asked = called > 0
    called = np.where(asked, called, loops)
    made = [m for r in kept if (m := record(r, first[r.id])) is not None]
    return GateJudgement(
        marks=marks_of(plan),
        notes=list(plan.notes),
        gate=stored.source,
        kind_of_gate=document.gate,
        threshold=gate.threshold,
        setting=document.setting,
        weights_sha256=document.weights_sha256,
        workload_hash=workload_hash(made, ArrivalSchedule()),
        figures=summarise(
            due, called, executed, _executed(alone, kept), _executed(first, kept), asked
        ),
        asked_tokens=int(asked.sum()),
        by_position=_by_position(
            _Live(called, executed, due.due, asked, _places(tokens, kept)), loops
        ),
        fallen_back=sum(_fell_back(gated[r.id]) for r in kept),
        flops_per_row=gate.gate.flops_per_row,
        core_flops_per_row=plan.model.network.flops_per_token().core,
        config=plan.config.model_dump(mode="json"),
        manifest=started,
    )


@dataclass(frozen=True)
class _Live:
    """Later tokens as the gate served them, ``[N]`` each; ``place`` counts them from 1."""

    called: IntArray
    executed: IntArray
    due: IntArray
    asked: BoolArray
    place: IntArray


def _serve(
    plan: Plan,
    requests: Sequence[Request],
    policy: ExitPolicy,
    tokens: dict[str, list[int]] | None,
    progress: Progress,
    name: str,
    signals: dict[str, FloatArray] | None = None,
) -> dict[str, RequestResult]:
    """Results by id; with ``signals``, the rule's at every loop of every later token."""
    progress.phase(name, len(requests))
    kind = Engine if signals is None else GhostEngine
    detokenize = plan.model.decode if plan.model.tokenizer is not None else None
    engine = kind(
        plan.model.network,
        plan.settings(plan.subject(Mode("cdb")), live=False),
        detokenize=detokenize if tokens is None else None,
    )
    given = [replace(request, exit=policy, arrival_s=0.0) for request in requests]
    if tokens is not None:
        given = [replace(request, force=tokens[request.id], stop_strings=()) for request in given]
    results = {}
    for result in engine.run(given):
        if result.error is not None:
            raise RequestRefused(f"request {result.id!r} {result.error}")
        results[result.id] = result
        if signals is not None and isinstance(engine, GhostEngine):
            signals[result.id] = engine.signals.of(result)
        progress.advance(1)
    return results


def _executed(results: dict[str, RequestResult], kept: Sequence[Request]) -> IntArray:
    return np.array([d for r in kept for d in results[r.id].executed_depths[1:]], np.int64)


def _called(result: RequestResult) -> IntArray:
    """Depths called, 0 where the gate was not asked."""
    assert result.predicted_depths is not None, "its request had a gate"
    return np.array([depth or 0 for depth in result.predicted_depths[1:]], np.int64)


def _fell_back(result: RequestResult) -> bool:
    return result.predicted_depths is not None and None in result.predicted_depths[1:]


def _places(tokens: dict[str, list[int]], kept: Sequence[Request]) -> IntArray:
    return np.concatenate([np.arange(1, len(tokens[r.id])) for r in kept])


def _by_position(live: _Live, loops: int) -> list[PositionFigures]:
    found: list[PositionFigures] = []
    for first, last in stretches(int(live.place.max())):
        here = (live.place >= first) & (live.place <= last)
        n, asked = int(here.sum()), here & live.asked
        counts = count_calls(live.called[asked], live.due[asked], loops)
        found.append(
            PositionFigures(
                first=first,
                last=last,
                tokens=n,
                precision=counts.precision,
                recall=counts.recall,
                exact=float((live.executed == live.due)[here].mean()) if n else None,
                mean_depth=float(live.executed[here].mean()) if n else None,
                mean_due=float(live.due[here].mean()) if n else None,
            )
        )
    return found
