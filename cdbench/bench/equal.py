"""Equal work: every mode processes the same recorded tokens and depths, in palindromic blocks.

The recorded run's tokens are forced, and adaptive modes leave each token at its recorded depth; the
live gate still runs and its readback is waited for, so what a decision costs is paid. Full-depth
modes run all their loops on the same tokens. Only here do wall times form ratios.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cdbench.bench.driver import feed
from cdbench.bench.equal_memory import residents_that_fit
from cdbench.bench.facts import earliest_call, stage_costs
from cdbench.bench.plan import Plan, Subject
from cdbench.errors import UsageError
from cdbench.machine.monitor import Monitor
from cdbench.metrics.trace import KvFigures, KvShape, RunTrace, Slo
from cdbench.models.loading import LoadedModel
from cdbench.runtime.cache_shape import slots_of_layout
from cdbench.runtime.core import LaunchLog, Request, RequestResult
from cdbench.schema.environment import RepeatEnvironment
from cdbench.stats.blocks import palindrome
from cdbench.workloads.arrival_times import ArrivalSchedule


@dataclass(frozen=True)
class RecordedRequest:
    """One request of the workload with the recorded run's tokens and depths."""

    id: str
    task: str | None
    doc_id: int | None
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    executed_depths: tuple[int, ...]
    requested_depths: tuple[int, ...]
    predicted_depths: tuple[int | None, ...] | None = None


@dataclass(frozen=True)
class TimedRun:
    """One timed run of one mode: its place, its trace, and the results it came from."""

    block: int
    order: int
    subject: Subject
    trace: RunTrace
    results: tuple[RequestResult, ...]
    environment: RepeatEnvironment | None = None


def record(request: Request, result: RequestResult) -> RecordedRequest | None:
    """What one live result leaves for equal work; None where it produced no token."""
    if result.error is not None or not result.tokens:
        return None
    return RecordedRequest(
        id=request.id,
        task=request.task,
        doc_id=request.doc_id,
        prompt=tuple(request.prompt),
        tokens=tuple(result.tokens),
        executed_depths=tuple(result.executed_depths),
        requested_depths=tuple(result.requested_depths),
        predicted_depths=_as_tuple(result.predicted_depths),
    )


def _as_tuple(depths: Sequence[int | None] | None) -> tuple[int | None, ...] | None:
    return None if depths is None else tuple(depths)


class TimedSubject:
    """One mode, warm: its engine and the requests it will be given again and again."""

    def __init__(
        self,
        plan: Plan,
        subject: Subject,
        workload: Sequence[RecordedRequest],
        arrivals: ArrivalSchedule | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.plan, self.subject = plan, subject
        self.arrivals = arrivals or ArrivalSchedule()
        self.monitor = monitor or Monitor.of(str(plan.model.network.device))
        self.log = LaunchLog()
        # Forced tokens are known: making text of them would only be host time.
        self.requests = [_forced(plan, subject, r) for r in workload]
        self.engine = plan.engine(
            subject, self.log, live=False, residents=_own_cap(plan, subject, self.requests)
        )
        self._recorded = {r.id: r for r in workload} if subject.adaptive else {}
        self.own_vocabulary = not same_vocabulary(plan.model, subject.model)

    def run(self, block: int, order: int) -> TimedRun:
        """One timed run over all requests, arriving as the workload has it."""
        engine = self.engine
        self.log.records.clear()
        engine.start_afresh()
        gc.collect()
        gc.disable()
        try:
            captured, before = engine.captures, self.monitor.before()
            region = feed(engine, self.requests, self.arrivals)
            environment = self.monitor.after(before)
            if captured is not None and engine.captures is not None:
                captures = {"captures": engine.captures - captured}
                environment = environment.model_copy(update=captures)
        finally:
            gc.enable()
        results = tuple(self._as_recorded(result) for result in engine.run())
        trace = self._trace(results, region.wall_s, environment)
        return TimedRun(block, order, self.subject, trace, results, environment)

    def _as_recorded(self, result: RequestResult) -> RequestResult:
        """With the requested and predicted depths of the recorded run, where depths are replayed.

        The live signal of a replayed token is that of this run's own states: beside synthetic or
        derived depths it asks for others, which nothing here acted upon.
        """
        known = self._recorded.get(result.id)
        if known is None or len(known.requested_depths) != len(result.tokens):
            return result
        called = known.predicted_depths
        return replace(
            result,
            requested_depths=list(known.requested_depths),
            predicted_depths=None if called is None else list(called),
        )

    def _trace(
        self, results: Sequence[RequestResult], wall_s: float, environment: RepeatEnvironment
    ) -> RunTrace:
        """What the metrics read of one run."""
        engine, subject, gpu = self.engine, self.subject, environment.gpu
        return RunTrace(
            mode=subject.label,
            requests=results,
            launches=tuple(self.log.records),
            wall_s=wall_s,
            width=engine.width,
            max_residents=engine.config.max_residents,
            max_loops=engine.max_loops,
            # Pools have rows of unlike size, so bytes are counted.
            kv=KvFigures(
                peak_rows=engine.cache.peak_bytes,
                bytes_per_row=1,
                shape=kv_shape(self.plan, subject),
                preemptions=engine.memory.counters.preemptions,
                prefix_hit_rate=engine.cache.prefix_hit_rate,
            ),
            costs=stage_costs(subject),
            arrivals=self.arrivals.kind,
            cancelled_loops=sum(r.cancelled_loops for r in results),
            slo=_slo(self.plan),
            price_per_hour=self.plan.config.price_per_hour,
            energy_j=gpu.energy_j if gpu is not None else None,
            peak_device_bytes=gpu.peak_allocated_bytes if gpu is not None else None,
            earliest_call=earliest_call(subject),
        )


def run_block(subjects: Sequence[TimedSubject], block: int) -> Iterator[TimedRun]:
    """One palindromic block; the starting mode is handed round from block to block."""
    by_label = {s.subject.label: s for s in subjects}
    for order, label in enumerate(palindrome(list(by_label), rotate=block)):
        yield by_label[label].run(block, order)


def kv_shape(plan: Plan, subject: Subject) -> KvShape:
    """What a mode's tokens keep under the run's layout."""
    dims = subject.model.network.dims
    return KvShape(
        dims.prelude_layers,
        dims.core_layers,
        dims.coda_layers,
        dims.kv_heads,
        dims.head_dim,
        subject.model.network.dtype.itemsize,
        slots_of_layout(plan.kv_layout, subject.max_loops),
    )


def _slo(plan: Plan) -> Slo | None:
    """The latency limits of the run; None where none is given."""
    limits = plan.config.slo
    slo = Slo(limits.ttft_s, limits.tpot_s, limits.e2e_s)
    return None if slo == Slo() else slo


def _own_cap(plan: Plan, subject: Subject, requests: Sequence[Request]) -> int | None:
    """The residents that fit the budget, under ``equal: memory``."""
    if plan.config.equal == "residents":
        return None
    assert plan.kv_budget_bytes is not None, "checked with the configuration"
    return residents_that_fit(subject, plan.cache_shape(subject), requests, plan.kv_budget_bytes)


def same_vocabulary(a: LoadedModel, b: LoadedModel) -> bool:
    """Whether token ids mean the same in both models."""
    if a.tokenizer is None or b.tokenizer is None:
        return a.network.dims.vocab_size == b.network.dims.vocab_size
    return bool(a.tokenizer.to_str() == b.tokenizer.to_str())


def _forced(plan: Plan, subject: Subject, recorded: RecordedRequest) -> Request:
    prompt, tokens = recorded.prompt, recorded.tokens
    if not same_vocabulary(plan.model, subject.model):
        prompt = _in_own_tokens(plan.model, subject.model, prompt)
        tokens = _in_own_tokens(plan.model, subject.model, tokens)
    # Packed, because each is copied into the engine's arrays at every admission of every repeat.
    return Request(
        id=recorded.id,
        prompt=array("q", prompt),
        exit=subject.policy,
        force=array("q", tokens),
        replay_depths=array("q", recorded.executed_depths) if subject.adaptive else None,
        task=recorded.task,
        doc_id=recorded.doc_id,
    )


def _in_own_tokens(source: LoadedModel, target: LoadedModel, ids: Sequence[int]) -> tuple[int, ...]:
    """The same text in another vocabulary, cut or repeated to the same number of tokens."""
    own = target.encode(source.decode(list(ids)))
    if not own:
        raise UsageError(f"model {target.name!r}: its tokenizer makes nothing of the workload")
    repeated = own * -(-len(ids) // len(own))
    return tuple(repeated[: len(ids)])


def characters_per_token(model: LoadedModel, requests: Sequence[Request]) -> float:
    """Characters that one forced token of a model stands for, on average."""
    texts = [model.decode(list(r.force or ())) for r in requests]
    return sum(map(len, texts)) / sum(len(r.force or ()) for r in requests)
