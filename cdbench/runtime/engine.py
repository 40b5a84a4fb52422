"""The engine: the token level over one model, and the coordinator of its parts.

It decides who is resident, when prompts are prefilled, what a request's next token means, and when a
request ends. The schedule decides which resident tokens run which stage next; the runner carries it
out; the cache says where keys and values lie. One tick: admit what has arrived, ask the schedule for
one launch, run it, route its rows.

    model = load_model("demo-ouro")
    engine = Engine(model.network, EngineConfig(mode="cdb", max_residents=8))
    for result in engine.run([Request("a", prompt=[5, 7, 9], exit=ExitPolicy("cdf", 0.5))]):
        print(result.tokens, result.executed_depths)

Results stream as requests finish. A request malformed in itself raises UsageError on submission; one
that can never fit the KV budget is refused alone, as a result with ``error`` set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.models.base import StagedModel
from cdbench.runtime.core import (
    BoolArray,
    Clock,
    FinishReason,
    FloatArray,
    IntArray,
    LaunchObserver,
    MonotonicClock,
    Request,
    RequestResult,
)
from cdbench.runtime.exits import check_policy
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.modes import adapt, make_schedule, mode_loops
from cdbench.runtime.prefill import FirstTokens, PrefillJob
from cdbench.runtime.residents import READS_OUT, Residents
from cdbench.runtime.runner import Runner, signal_dtype
from cdbench.runtime.schedules.base import Launch, Verdict, VerdictArray, Work

Detokenize = Callable[[list[int]], str]


@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs. Widths are rows, prefill is tokens, the budget is bytes.

    ``width`` defaults to ``max_residents``; ``min_free_residents`` to width / 8, rounded up;
    ``max_loops`` to the mode's or the model's. Without ``kv_budget_bytes`` the pool grows as needed.
    """

    mode: str = "cdb"
    max_residents: int = 64
    width: int | None = None
    kv_layout: str = "per-loop"
    kv_budget_bytes: int | None = None
    max_loops: int | None = None
    prefill_tokens: int = 2048
    coda_min_rows: int = 1
    min_free_residents: int | None = None


class Engine:
    """Serves requests over one model in one mode. Engines are independent of one another."""

    def __init__(
        self,
        model: StagedModel,
        config: EngineConfig | None = None,
        *,
        detokenize: Detokenize | None = None,
        clock: Clock | None = None,
        observer: LaunchObserver | None = None,
    ) -> None:
        self.config = config = config or EngineConfig()
        _check_config(config)
        self.mode = parse_mode(config.mode)
        self.model = model
        self.max_loops = mode_loops(self.mode, config.max_loops or model.dims.max_loops)
        self.width = config.width or config.max_residents
        self.min_free = config.min_free_residents or -(-self.width // 8)
        self.clock: Clock = clock or MonotonicClock()
        self.detokenize = detokenize
        self.residents = Residents(
            config.max_residents, self.max_loops, model.device, signal_dtype(model)
        )
        self.cache = KVCache(
            model.dims,
            config.kv_layout,
            self.max_loops,
            config.max_residents,
            config.kv_budget_bytes,
            model.dtype,
            model.device,
        )
        self.runner = Runner(model, self.cache, self.residents, self.clock, observer)
        self.schedule = make_schedule(self.mode, self.width, config.coda_min_rows)
        self._waiting: deque[Request] = deque()
        self._future: list[Request] = []
        self._job: PrefillJob | None = None
        self._done: deque[RequestResult] = deque()

    # The caller's side.

    def submit(self, request: Request) -> None:
        """Queue a request for its arrival time. Raises UsageError where it is malformed."""
        request = adapt(self.mode, request)
        self._check(request)
        if not self.cache.could_ever_hold(_positions(request)):
            self._done.append(self._refusal(request))
            return
        if request.arrival_s <= self.clock.now():
            self._waiting.append(request)
        else:
            self._future.append(request)
            # Latest first, so that arrivals leave from the end.
            self._future.sort(key=lambda r: -r.arrival_s)

    def run(self, requests: Iterable[Request] = ()) -> Iterator[RequestResult]:
        """Serve until nothing is left; yields each result as it finishes."""
        for request in requests:
            self.submit(request)
        while True:
            while self._done:
                yield self._done.popleft()
            if not self.tick() and not self._done:
                return

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """End a request now, keeping what it produced. False where it is unknown or has finished."""
        for queue in (self._waiting, self._future):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._done.append(_never_ran(request, self.clock.now(), FinishReason.CANCELLED))
                    return True
        for r, request in enumerate(self.residents.requests):
            if request is not None and request.id == request_id:
                self._finish_prefill()
                if self.residents.requests[r] is request:
                    self.schedule.leave(np.array([r]))
                    self._finish(r, FinishReason.CANCELLED, None)
                return True
        return False

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._future or self.residents.occupied_count)

    # One tick.

    @torch.inference_mode()
    def tick(self) -> bool:
        """Make one scheduling decision and carry it out. False when there is nothing left to do."""
        self._arrive()
        launch = self.schedule.next_launch(prefill_offered=self._offers_prefill())
        if launch is None:
            if not self._future:
                return False
            self.clock.wait_until(self._future[-1].arrival_s)
            return True
        self.runner.runnable = self.residents.occupied_count + len(self._waiting)
        if launch.work is Work.PREFILL:
            self._prefill()
        elif launch.work is Work.CORE:
            self._core(launch)
        else:
            self._coda(launch)
        return True

    def _arrive(self) -> None:
        while self._future and self._future[-1].arrival_s <= self.clock.now():
            self._waiting.append(self._future.pop())

    def _offers_prefill(self) -> bool:
        """A job under way, or enough free residents for waiting requests to be worth a launch."""
        if self._job is not None:
            return True
        free = self.residents.free_count
        if not self._waiting or not free or not self.cache.can_hold(_positions(self._waiting[0])):
            return False
        enough = min(self.min_free, len(self._waiting))
        return free >= enough or self.residents.occupied_count == 0

    def _prefill(self) -> None:
        if self._job is None:
            self._job = self._admit()
        first = self._job.step()
        if first is not None:
            self._job = None
            self._take_first_tokens(first)

    def _finish_prefill(self) -> None:
        while self._job is not None:
            self._prefill()

    def _admit(self) -> PrefillJob:
        """Make waiting requests resident, in order, while room and the prefill budget last."""
        prompts: dict[int, IntArray] = {}
        room = self.config.prefill_tokens
        now = self.clock.now()
        while self._waiting and self.residents.free_count:
            request = self._waiting[0]
            fits = self.cache.can_hold(_positions(request))
            if not fits or (prompts and len(request.prompt) > room):
                break
            self._waiting.popleft()
            resident = self.residents.admit(request, now)
            self.cache.reserve(resident, _positions(request))
            prompts[resident] = np.asarray(request.prompt, dtype=np.int64)
            room -= len(request.prompt)
        return PrefillJob(self.runner, prompts, self.max_loops, self.config.prefill_tokens)

    def _take_first_tokens(self, first: FirstTokens) -> None:
        res = self.residents
        for r in first.residents:
            res.position[r] = len(res.request(int(r)).prompt) - 1
        full = np.full_like(first.residents, self.max_loops)
        self._take_tokens(first.residents, first.tokens, first.logprobs, full, full)

    def _core(self, launch: Launch) -> None:
        res = self.residents
        rows = launch.residents
        met = self.runner.core(rows)
        exited = res.decide(rows, met)
        reads_out = READS_OUT[res.rule[rows]]
        verdicts = np.where(exited, Verdict.EXIT, Verdict.LOOP).astype(np.int8)
        if reads_out.any():
            # A readout may be what decides; it also serves as the token's coda if this loop is the exit.
            verdicts[reads_out & ~exited] = Verdict.READ_OUT
        self.schedule.signals(launch, verdicts)

    def _coda(self, launch: Launch) -> None:
        res = self.residents
        rows = launch.residents
        tokens, logprobs, met = self.runner.coda(rows)
        done = np.ones(rows.size, np.bool_)
        reads_out = READS_OUT[res.rule[rows]]
        if reads_out.any():
            done = np.where(reads_out, res.decide(rows, met), True)
        verdicts = np.where(done, Verdict.DONE, Verdict.LOOP).astype(np.int8)
        self.schedule.signals(launch, verdicts)
        self._settle_tokens(rows[done], tokens[done], logprobs[done])

    def _settle_tokens(self, rows: IntArray, tokens: IntArray, logprobs: FloatArray) -> None:
        if not rows.size:
            return
        res = self.residents
        executed = res.loop[rows]
        for cache in self.cache.stages.values():
            cache.settle(rows, res.position[rows], executed)
        self._take_tokens(rows, tokens, logprobs, executed, res.requested_depths(rows))

    def _take_tokens(
        self,
        rows: IntArray,
        tokens: IntArray,
        logprobs: FloatArray,
        executed: IntArray,
        requested: IntArray,
    ) -> None:
        """Record new tokens, end the requests they end, and start the others' next tokens."""
        res = self.residents
        stopped = (res.stop_ids[rows] == tokens[:, None]).any(1)
        listed = ~stopped
        res.outputs.append(
            rows[listed],
            tokens[listed],
            executed[listed],
            requested[listed],
            logprobs[listed],
            self.clock.now(),
        )
        ended = stopped | (res.outputs.count[rows] >= res.limit[rows])
        ended |= self._hits_stop_string(rows, listed)
        res.token[rows] = tokens
        res.position[rows] += 1
        for i in np.flatnonzero(ended):
            reason = FinishReason.STOP if stopped[i] else FinishReason.LENGTH
            self._finish(int(rows[i]), reason, int(executed[i]) if stopped[i] else None)
        going = rows[~ended]
        if going.size:
            res.start_token(going)
            self.runner.prelude(going)
            self.schedule.enter(going)

    def _hits_stop_string(self, rows: IntArray, listed: BoolArray) -> BoolArray:
        hits = np.zeros(rows.size, np.bool_)
        for i in np.flatnonzero(self.residents.has_stop_strings[rows] & listed):
            r = int(rows[i])
            text = self._text(r)
            strings = self.residents.request(r).stop_strings
            hits[i] = text is not None and any(s in text for s in strings)
        return hits

    # The end of a request.

    def _finish(self, r: int, reason: FinishReason, stop_depth: int | None) -> None:
        res = self.residents
        request, out = res.request(r), res.outputs
        n = int(out.count[r])
        text = self._text(r)
        cut = _first_stop(text, request.stop_strings) if request.force is None else None
        if text is not None and cut is not None:
            text = text[:cut]
            reason = FinishReason.STOP if reason is FinishReason.LENGTH else reason
        now = self.clock.now()
        self._done.append(
            RequestResult(
                id=request.id,
                prompt_tokens=len(request.prompt),
                tokens=out.tokens[r, :n].tolist(),
                executed_depths=out.executed[r, :n].tolist(),
                requested_depths=out.requested[r, :n].tolist(),
                logprobs=out.logprobs[r, :n].tolist(),
                text=text,
                stop_depth=stop_depth,
                finish_reason=reason,
                error=None,
                arrival_s=request.arrival_s,
                admitted_s=float(res.admitted_s[r]),
                token_s=out.token_s[r, :n].tolist(),
                finish_s=now,
                task=request.task,
                doc_id=request.doc_id,
            )
        )
        self.cache.release(r)
        res.free(r)

    def _text(self, r: int) -> str | None:
        if self.detokenize is None:
            return None
        out = self.residents.outputs
        return self.detokenize(out.tokens[r, : out.count[r]].tolist())

    # Checks.

    def _check(self, request: Request) -> None:
        dims = self.model.dims
        what = f"request {request.id!r}"
        if not len(request.prompt):
            raise UsageError(f"{what}: the prompt is empty; give at least one token")
        ids = [*request.prompt, *(request.force or ())]
        wrong = next((t for t in ids if not 0 <= t < dims.vocab_size), None)
        if wrong is not None:
            raise UsageError(
                f"{what}: token id {wrong} is outside the vocabulary; use 0 to {dims.vocab_size - 1}"
            )
        limit = len(request.force) if request.force is not None else request.max_new_tokens
        if limit < 1:
            raise UsageError(f"{what}: asks for {limit} new tokens; ask for at least 1")
        if _positions(request) > dims.max_positions:
            raise UsageError(
                f"{what}: {len(request.prompt)} prompt tokens and {limit} new ones exceed the model's "
                f"{dims.max_positions} positions; shorten the prompt or lower max_new_tokens"
            )
        if request.replay_depths is not None:
            self._check_replay(request, what)
        if request.stop_strings and self.detokenize is None:
            raise UsageError(f"{what}: stop strings need a tokenizer; use stop ids")
        check_policy(request.exit, dims, self.max_loops)

    def _check_replay(self, request: Request, what: str) -> None:
        depths = request.replay_depths or ()
        if request.force is None or len(depths) != len(request.force):
            raise UsageError(f"{what}: replayed depths need as many forced tokens; record both")
        wrong = next((d for d in depths[1:] if not 1 <= d <= self.max_loops), None)
        if wrong is not None:
            raise UsageError(
                f"{what}: recorded depth {wrong} is out of range; this run has {self.max_loops} loops"
            )

    def _refusal(self, request: Request) -> RequestResult:
        need = _positions(request) * self.cache.position_bytes
        refused = _never_ran(request, self.clock.now(), FinishReason.ERROR)
        refused.error = (
            f"needs {need} bytes of KV cache, {self.cache.budget_bytes} are available; "
            "raise kv.budget_bytes or shorten the request"
        )
        return refused


def _positions(request: Request) -> int:
    """Positions a request can come to occupy: the last token it makes is never fed back."""
    limit = len(request.force) if request.force is not None else request.max_new_tokens
    return len(request.prompt) + limit - 1


def _first_stop(text: str | None, strings: tuple[str, ...]) -> int | None:
    found = [text.find(s) for s in strings if s in text] if text is not None else []
    return min(found, default=None)


def _never_ran(request: Request, now_s: float, reason: FinishReason) -> RequestResult:
    return RequestResult(
        id=request.id,
        prompt_tokens=len(request.prompt),
        tokens=[],
        executed_depths=[],
        requested_depths=[],
        logprobs=[],
        text=None,
        stop_depth=None,
        finish_reason=reason,
        error=None,
        arrival_s=request.arrival_s,
        admitted_s=None,
        token_s=[],
        finish_s=now_s,
        task=request.task,
        doc_id=request.doc_id,
    )


def _check_config(config: EngineConfig) -> None:
    sizes = {
        "max_residents": config.max_residents,
        "width": config.width,
        "prefill_tokens": config.prefill_tokens,
        "coda_min_rows": config.coda_min_rows,
        "min_free_residents": config.min_free_residents,
        "max_loops": config.max_loops,
        "kv.budget_bytes": config.kv_budget_bytes,
    }
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; use at least 1")
