"""The engine: the token level over one model, and the coordinator of its parts.

It decides who is resident, when prompts are prefilled, what a request's next token means, and when
a request ends. The schedule decides which resident tokens run which stage next; the runner carries
it out; the cache says where keys and values lie. One tick: admit what has arrived, ask the schedule
for one launch, run it, route its rows.

    model = load_model("demo-ouro")
    engine = Engine(model.network, EngineConfig(mode="cdb", max_residents=8))
    for result in engine.run([Request("a", prompt=[5, 7, 9], exit=ExitPolicy("cdf", 0.5))]):
        print(result.tokens, result.executed_depths)

Results stream as requests finish. A request malformed in itself raises UsageError on submission;
one that can never fit the KV budget is refused alone, as a result with ``error`` set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
import torch

from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.metrics.curves import MeasuredCurves
from cdbench.models.base import StagedModel
from cdbench.runtime.admission import check_request
from cdbench.runtime.arrivals import Arrivals
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
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.memory import Memory, MemoryCounters
from cdbench.runtime.modes import adapt, make_schedule, mode_loops
from cdbench.runtime.pacing import Pacing
from cdbench.runtime.prefill import FirstTokens, PrefillJob
from cdbench.runtime.residents import Residents
from cdbench.runtime.results import Detokenize, Ended, ended, first_stop, refused, withdrawn
from cdbench.runtime.runner import Runner, signal_dtype
from cdbench.runtime.schedules.base import Launch, Verdict, Work


@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs. Widths are rows, prefill is tokens, the budget is bytes.

    ``width`` defaults to ``max_residents``; ``min_free_residents`` to width / 8, rounded up;
    ``max_loops`` to the mode's or the model's. Without ``kv_budget_bytes`` the pool grows as
    needed; with one, ``kv_host_bytes`` limits what may be moved to host memory under pressure
    (None: no limit). ``prefix_cache`` reuses the KV of equal prompt prefixes. ``coda_min_rows``
    ``auto`` is 1 until ``use_curves``. ``max_itl_s`` bounds what prompts may add to the gap between
    tokens, ``ride`` lets their chunks share core launches. ``first_token`` is full or select,
    ``state_init`` zero or random.
    """

    mode: str = "cdb"
    max_residents: int = 64
    width: int | None = None
    kv_layout: str = "per-loop"
    kv_budget_bytes: int | None = None
    kv_host_bytes: int | None = None
    prefix_cache: bool = False
    max_loops: int | None = None
    prefill_tokens: int = 2048
    coda_min_rows: int | Literal["auto"] = 1
    min_free_residents: int | None = None
    max_itl_s: float | None = None
    ride: bool = False
    first_token: str = "full"
    state_init: str = "zero"


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
        check_config(config)
        check_model(config, model)
        self.mode = parse_mode(config.mode)
        self.model = model
        self.max_loops = mode_loops(self.mode, config.max_loops or model.dims.max_loops)
        self.width = config.width or config.max_residents
        self.min_free = config.min_free_residents or -(-self.width // 8)
        self.clock: Clock = clock or MonotonicClock()
        self.detokenize = detokenize
        self.residents = Residents(
            config.max_residents,
            self.max_loops,
            model.dims,
            model.device,
            signal_dtype(model),
        )
        self.cache = KVCache(
            model.dims,
            config.kv_layout,
            self.max_loops,
            config.max_residents,
            config.kv_budget_bytes,
            model.dtype,
            model.device,
            prefix_cache=config.prefix_cache,
        )
        self.runner = Runner(
            model,
            self.cache,
            self.residents,
            self.clock,
            observer,
            random_state=config.state_init == "random",
        )
        self.schedule = make_schedule(
            self.mode, self.width, config.coda_min_rows, config.max_residents, self.max_loops
        )
        self.pacing: Pacing | None = None
        if config.max_itl_s is not None:
            self.pacing = Pacing(
                config.max_itl_s,
                self.residents,
                self.width,
                config.prefill_tokens,
                mixes_depths=self.mode.kind == "cdb",
            )
        self.memory = Memory(
            self.cache, self.residents, self.runner, self.schedule, config.kv_host_bytes
        )
        self._arrivals = Arrivals()
        self._job: PrefillJob | None = None
        self._done: deque[Ended] = deque()

    # The caller's side.

    def submit(self, request: Request) -> None:
        """Queue a request for its arrival time. Raises UsageError where it is malformed."""
        request = adapt(self.mode, request)
        check_request(request, self.model.dims, self.max_loops, self.detokenize is not None)
        if not self.cache.could_ever_hold(request.positions):
            self._done.append(refused(request, self.cache, self.clock.now()))
        else:
            self._arrivals.submit(request)

    def run(self, requests: Iterable[Request] = ()) -> Iterator[RequestResult]:
        """Serve until nothing is left; yields each result as it finishes."""
        for request in requests:
            self.submit(request)
        while True:
            while self._done:
                yield self._done.popleft().result(self.detokenize)
            if not self.tick() and not self._done:
                return

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """End a request now, keeping what it produced. False where it is unknown or has finished.

        A request in the middle of its prefill is first brought to the end of it.
        """
        request = self._arrivals.withdraw(request_id)
        if request is not None:
            self._done.append(Ended(request, FinishReason.CANCELLED, self.clock.now()))
            return True
        away = self.memory.withdraw(request_id)
        if away is not None:
            self._done.append(withdrawn(away.resident, self.clock.now()))
            return True
        resident = self.residents.find(request_id)
        if resident is not None and self._job is not None and resident in self._job.prompts:
            self._finish_prefill()
            # Its first token may have been its last.
            resident = self.residents.find(request_id)
        if resident is None:
            return False
        self.schedule.leave(np.array([resident]))
        self._finish(resident, FinishReason.CANCELLED, None)
        return True

    @property
    def idle(self) -> bool:
        """Whether every request submitted has finished."""
        held = self.residents.occupied_count + len(self.memory.preempted)
        return not (self._arrivals.pending_count or held)

    @property
    def ended_count(self) -> int:
        """Requests that have ended since ``run`` last took their results."""
        return len(self._done)

    def start_afresh(self) -> None:
        """Empty the prefix cache, reset counters, forget what was learned: before a repeat."""
        self.cache.start_afresh()
        self.memory.counters = MemoryCounters()
        self.schedule.start_afresh()
        if self.pacing is not None:
            self.pacing.start_afresh()

    def use_curves(self, curves: MeasuredCurves, prompt_loops: int) -> None:
        """Decide by these launch times from now on: ``coda_min_rows: auto`` and ``max_itl_s``.

        ``prompt_loops``: loops of the prompts whose chunks were measured.

        Raises:
            ValueError: they do not reach the width.
        """
        self.schedule.use_curves(curves)
        if self.pacing is not None:
            self.pacing.use_curves(curves, prompt_loops)

    # One tick.

    @torch.inference_mode()
    def tick(self) -> bool:
        """Make one scheduling decision and carry it out. False when there is nothing left to do."""
        self._arrivals.arrive(self.clock.now())
        if self.memory.preempted:
            self.memory.restore()
        offered = self._offers_prefill()
        rides = offered and self.config.ride and self._job is not None and self._job.may_ride
        launch = self.schedule.next_launch(prefill_offered=offered, may_ride=rides)
        if launch is None:
            next_s = self._arrivals.next_s
            if next_s is not None:
                self.clock.wait_until(next_s)
            return next_s is not None
        self.runner.runnable = (
            self.residents.occupied_count + len(self.memory.preempted) + len(self._arrivals.waiting)
        )
        if self.pacing is None:
            self._carry_out(launch)
            return True
        began_s = self.clock.now()
        prompt_tokens = self._carry_out(launch)
        self.pacing.saw(launch, prompt_tokens, began_s, self.clock.now())
        return True

    def _carry_out(self, launch: Launch) -> int:
        """Run a launch and route its rows; the prompt tokens that were in it."""
        if launch.work is Work.PREFILL:
            return self._prefill()
        launch = self.memory.make_room(launch, self._preparing, self._finish_prefill)
        if not launch.residents.size:
            return 0
        if launch.work is Work.CORE:
            return self._core(launch)
        self._coda(launch)
        return 0

    def _preparing(self) -> set[int]:
        """The residents whose prompts are running."""
        return set(self._job.prompts) if self._job is not None else set()

    def _offers_prefill(self) -> bool:
        """A job under way, or enough free residents for waiting requests to be worth a launch."""
        if self._job is not None:
            return self._is_in_time()
        free, waiting = self.residents.free_count, self._arrivals.waiting
        if not waiting or not free:
            return False
        enough = min(self.min_free, len(waiting))
        if free < enough and self.residents.occupied_count:
            return False
        return self._is_in_time() and self.memory.can_admit(waiting[0])

    def _is_in_time(self) -> bool:
        """Whether ``max_itl_s`` leaves room for the prompt tokens of the launch that comes next."""
        if self.pacing is None:
            return True
        preparing = self._preparing()
        decoding = np.setdiff1d(self.residents.occupied, list(preparing))
        if self._job is not None:
            tokens = self._job.next_tokens
        else:
            coming = islice(self._arrivals.waiting, self.residents.free_count)
            tokens = sum(len(request.prompt) for request in coming)
            tokens = min(tokens, self.pacing.chunk_tokens(decoding.size))
        return self.pacing.allows(decoding, tokens, len(preparing), self.clock.now())

    def _prefill(self) -> int:
        """Make a prefill's next launch; the prompt tokens that were in it."""
        if self._job is None:
            self._job = self._admit()
        job, tokens = self._job, self._job.next_tokens
        first = job.step()
        if first is not None:
            self._job = None
            for r, ids in job.prompts.items():
                self.cache.close_prompt(r, ids, self.residents.request(r).positions)
            self._take_first_tokens(first)
        return tokens

    def _finish_prefill(self) -> None:
        while self._job is not None:
            self._prefill()

    def _admit(self) -> PrefillJob:
        """Make waiting requests resident, in order, while room and the prefill budget last."""
        prompts: dict[int, IntArray] = {}
        starts: dict[int, int] = {}
        room = self.config.prefill_tokens
        now, waiting = self.clock.now(), self._arrivals.waiting
        while waiting and self.residents.free_count:
            request = waiting[0]
            if prompts and (len(request.prompt) > room or not self.memory.can_admit(request)):
                break
            waiting.popleft()
            resident, ids, cached = self.memory.admit(request, now)
            prompts[resident], starts[resident] = ids, cached
            room -= ids.size - cached
        self.residents.upload()
        chunk_tokens = self.config.prefill_tokens
        if self.pacing is not None:
            chunk_tokens = self.pacing.chunk_tokens(self.schedule.in_flight)
        return PrefillJob(
            self.runner,
            prompts,
            self.max_loops,
            chunk_tokens,
            select_first=self.config.first_token == "select",
            starts=starts,
        )

    def _take_first_tokens(self, first: FirstTokens) -> None:
        res = self.residents
        for r in first.residents:
            res.position[r] = len(res.request(int(r)).prompt) - 1
        full = np.full_like(first.residents, self.max_loops)
        self._take_tokens(first.residents, first.tokens, first.logprobs, full, first.depths)

    def _core(self, launch: Launch) -> int:
        """Run a loop, with the chunk that rides in it; the prompt tokens of that."""
        res = self.residents
        rows = launch.residents
        job = self._job if launch.rides else None
        # Making room may have brought the job to its end.
        if job is not None and job.may_ride:
            prompt_tokens, met = job.next_tokens, job.ride(rows)
        else:
            prompt_tokens, met = 0, self.runner.core(rows)
        exited = res.decide(rows, met)
        if res.foresight.any:
            res.look_ahead(rows, self.runner.calls & ~exited)
        verdicts = np.where(exited, Verdict.EXIT, Verdict.LOOP)
        if res.any_reads_out:
            # A readout may be what decides; if this loop is the exit it is the token's coda too.
            verdicts[res.reads_out[rows] & ~exited] = Verdict.READ_OUT
        self.schedule.signals(launch, verdicts)
        return prompt_tokens

    def _coda(self, launch: Launch) -> None:
        res = self.residents
        rows = launch.residents
        tokens, logprobs, met = self.runner.coda(rows)
        verdicts = np.full(rows.size, Verdict.DONE)
        if res.any_reads_out:
            verdicts[res.reads_out[rows] & ~res.decide(rows, met)] = Verdict.LOOP
            done = verdicts == Verdict.DONE
            rows, tokens, logprobs = rows[done], tokens[done], logprobs[done]
        self.schedule.signals(launch, verdicts)
        if rows.size:
            depths = res.loop[rows], res.requested_depths(rows)
            self._take_tokens(rows, tokens, logprobs, *depths)

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
        stopped = res.hits_stop_id(rows, tokens)
        entry = (rows, tokens, executed, requested, logprobs)
        if np.count_nonzero(stopped):
            # A stop token is not listed.
            listed = ~stopped
            entry = (
                rows[listed],
                tokens[listed],
                executed[listed],
                requested[listed],
                logprobs[listed],
            )
        res.outputs.append(*entry, self.clock.now())
        if res.foresight.any:
            res.keep_predictions(entry[0])
        finishing = stopped | (res.outputs.count[rows] >= res.limit[rows])
        if res.any_stop_strings:
            watched = res.has_stop_strings[rows]
            finishing |= self._hits_stop_string(rows, watched & ~stopped)
        res.token[rows] = tokens
        res.position[rows] += 1
        ends = np.flatnonzero(finishing)
        if not ends.size:
            self._start_tokens(rows, executed)
            return
        for i in ends:
            reason = FinishReason.STOP if stopped[i] else FinishReason.LENGTH
            self._finish(int(rows[i]), reason, int(executed[i]) if stopped[i] else None)
        if ends.size < rows.size:
            going = ~finishing
            self._start_tokens(rows[going], executed[going])

    def _start_tokens(self, rows: IntArray, depths: IntArray) -> None:
        """Run the prelude of the residents' next tokens and hand them to the schedule.

        ``depths`` are the loops that their last tokens executed.
        """
        self.residents.start_token(rows)
        # A pack of prompts may hold more requests than a launch may have rows.
        for begin in range(0, rows.size, self.width):
            end = begin + self.width
            self.runner.prelude(rows[begin:end], depths[begin:end])
        self.schedule.enter(rows)

    def _hits_stop_string(self, rows: IntArray, watched: BoolArray) -> BoolArray:
        """Which of the watched rows have a stop string in their text so far."""
        hits = np.zeros(rows.size, np.bool_)
        for i in np.flatnonzero(watched):
            r = int(rows[i])
            strings = self.residents.request(r).stop_strings
            hits[i] = first_stop(self._text(r), strings) is not None
        return hits

    # The end of a request.

    def _finish(self, r: int, reason: FinishReason, stop_depth: int | None) -> None:
        self._done.append(ended(self.residents, r, reason, stop_depth, self.clock.now()))
        self.cache.release(r)
        self.residents.free(r)

    def _text(self, r: int) -> str | None:
        if self.detokenize is None:
            return None
        out = self.residents.outputs
        return self.detokenize(out.tokens[r, : out.count[r]].tolist())


def check_model(config: EngineConfig, model: StagedModel) -> None:
    """Raise UsageError where a model cannot do what the configuration asks of it."""
    if config.state_init != "random":
        return
    if not model.dims.has_random_state:
        raise UsageError(
            f"state_init 'random': a {model.dims.model_type} model starts from its prelude; "
            "use zero"
        )
    if config.prefix_cache:
        raise UsageError(
            "kv.prefix_cache: with state_init random no two prompts have the same keys; use false"
        )


def check_config(config: EngineConfig) -> None:
    """Raise UsageError where a size or a choice of a configuration cannot be."""
    sizes = {
        "max_residents": config.max_residents,
        "width": config.width,
        "prefill_tokens": config.prefill_tokens,
        "coda_min_rows": 1 if config.coda_min_rows == "auto" else config.coda_min_rows,
        "min_free_residents": config.min_free_residents,
        "max_loops": config.max_loops,
        "kv.budget_bytes": config.kv_budget_bytes,
        "kv.host_bytes": config.kv_host_bytes,
    }
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; use at least 1")
    for name, choice, known in (
        ("first_token", config.first_token, ("full", "select")),
        ("state_init", config.state_init, ("zero", "random")),
    ):
        if choice not in known:
            raise UsageError(f"{name} {choice!r}: unknown; use {' or '.join(known)}")
