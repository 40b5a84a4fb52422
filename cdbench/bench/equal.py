"""Equal work: every mode processes the same recorded tokens and depths, in palindromic blocks.

The recorded run's tokens are forced, and adaptive modes leave each token at its recorded depth; the
live gate still runs and its readback is waited for, so what a decision costs is paid. Full-depth
modes run all their loops on the same tokens. Only here do wall times form ratios.
"""

from __future__ import annotations

import gc
import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cdbench.bench.plan import Plan, Subject
from cdbench.errors import UsageError
from cdbench.metrics.trace import KvFigures, KvShape, RunTrace
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import LaunchLog, LaunchRecord, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.stats.blocks import palindrome


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


@dataclass(frozen=True)
class TimedRun:
    """One timed run of one mode: its place, its trace, and the results it came from."""

    block: int
    order: int
    subject: Subject
    trace: RunTrace
    results: tuple[RequestResult, ...]


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
    )


def workload_hash(requests: Sequence[RecordedRequest]) -> str:
    """sha256 over prompts, forced tokens and depths, all arriving at once."""
    content = [[r.id, list(r.prompt), list(r.tokens), list(r.executed_depths)] for r in requests]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


class TimedSubject:
    """One mode, warm: its engine and the requests it will be given again and again."""

    def __init__(self, plan: Plan, subject: Subject, workload: Sequence[RecordedRequest]) -> None:
        self.subject = subject
        self.log = LaunchLog()
        # Forced tokens are known: making text of them would only be host time.
        self.engine = plan.engine(subject, self.log, live=False)
        self.requests = [_forced(plan, subject, r) for r in workload]
        self.own_vocabulary = not same_vocabulary(plan.model, subject.model)

    def run(self, block: int, order: int) -> TimedRun:
        """One timed run over all requests, arriving at once."""
        engine = self.engine
        self.log.records.clear()
        engine.start_afresh()
        gc.collect()
        gc.disable()
        try:
            arrival_s = engine.clock.now()
            for request in self.requests:
                engine.submit(replace(request, arrival_s=arrival_s))
            start = engine.clock.now()
            while engine.tick():
                pass
            end = engine.clock.now()
        finally:
            gc.enable()
        results = tuple(engine.run())
        trace = run_trace(engine, self.subject, results, tuple(self.log.records), end - start)
        return TimedRun(block, order, self.subject, trace, results)


def run_blocks(
    subjects: Sequence[TimedSubject], blocks: int, may_start: Callable[[], bool]
) -> Iterator[TimedRun]:
    """Palindromic blocks, the starting mode handed round; ``may_start`` is asked before each."""
    by_label = {s.subject.label: s for s in subjects}
    for block in range(blocks):
        if not may_start():
            return
        for order, label in enumerate(palindrome(list(by_label), rotate=block)):
            yield by_label[label].run(block, order)


def run_trace(
    engine: Engine,
    subject: Subject,
    results: Sequence[RequestResult],
    launches: Sequence[LaunchRecord],
    wall_s: float,
) -> RunTrace:
    """What the metrics read of one run."""
    dims = subject.model.network.dims
    shape = KvShape(
        dims.prelude_layers,
        dims.core_layers,
        dims.coda_layers,
        dims.kv_heads,
        dims.head_dim,
        subject.model.network.dtype.itemsize,
        engine.cache.slots,
    )
    return RunTrace(
        mode=subject.label,
        requests=results,
        launches=launches,
        wall_s=wall_s,
        width=engine.width,
        max_residents=engine.config.max_residents,
        max_loops=engine.max_loops,
        # Pools have rows of unlike size, so bytes are counted.
        kv=KvFigures(
            peak_rows=engine.cache.peak_bytes,
            bytes_per_row=1,
            shape=shape,
            preemptions=engine.memory.counters.preemptions,
            prefix_hit_rate=engine.cache.prefix_hit_rate,
        ),
        costs=subject.model.network.flops_per_token(),
        cancelled_loops=sum(r.cancelled_loops for r in results),
    )


def unequal_work(runs: Sequence[TimedRun], workload: Sequence[RecordedRequest]) -> list[str]:
    """Why the timed runs did not do the recorded work; empty where they all did."""
    wanted = {r.id: r for r in workload}
    reasons: dict[str, int] = {}
    for run in runs:
        for reason in _unequal_run(run, wanted):
            reasons[reason] = reasons.get(reason, 0) + 1
    return [f"{why} (in {n} repeats)" if n > 1 else why for why, n in reasons.items()]


def _unequal_run(run: TimedRun, wanted: dict[str, RecordedRequest]) -> Iterator[str]:
    where = f"mode {run.subject.label}"
    failed = [r for r in run.results if r.error is not None]
    if failed:
        yield f"{where}: {len(failed)} requests failed ({failed[0].error})"
    done = {r.id: r for r in run.results if r.error is None}
    counts = sum(len(r.tokens) for r in done.values())
    expected = sum(len(wanted[name].tokens) for name in done)
    if counts != expected or len(done) + len(failed) != len(wanted):
        yield f"{where}: {counts} output tokens instead of {expected}"
    if run.subject.adaptive and any(
        tuple(r.executed_depths) != wanted[name].executed_depths for name, r in done.items()
    ):
        yield f"{where}: executed depths differ from the recorded ones"


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
