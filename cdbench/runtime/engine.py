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

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from cdbench.errors import UsageError
from cdbench.grammar import parse_mode
from cdbench.metrics.curves import MeasuredCurves
from cdbench.models.base import StagedModel
from cdbench.models.compiled import compiled
from cdbench.runtime.admission import check_request
from cdbench.runtime.attention.backends import avoid_plans_by_shape, choose_backend, plan_class
from cdbench.runtime.core import (
    Clock,
    FinishReason,
    LaunchObserver,
    MonotonicClock,
    Request,
    RequestResult,
)
from cdbench.runtime.engine_config import EngineConfig, check_config, check_model
from cdbench.runtime.graphs import StageGraphs
from cdbench.runtime.intake import Intake
from cdbench.runtime.kv_cache import KVCache
from cdbench.runtime.memory import Memory, MemoryCounters
from cdbench.runtime.modes import adapt, make_schedule, mode_loops
from cdbench.runtime.new_tokens import NewTokens
from cdbench.runtime.pacing import Pacing
from cdbench.runtime.readback import Awaited
from cdbench.runtime.residents import Residents
from cdbench.runtime.results import Detokenize, Ended, refused, withdrawn
from cdbench.runtime.routing import Routing
from cdbench.runtime.runner import Runner
from cdbench.runtime.schedules.base import Launch, Work


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
        self.attention = choose_backend(config.attention, model.device)
        """The attention backend that decode launches use."""
        avoid_plans_by_shape(model.device)
        self.width = config.width or config.max_residents
        self.model = model = compiled(model, self.width) if config.compile else model
        self.max_loops = mode_loops(self.mode, config.max_loops or model.dims.max_loops)
        self.clock: Clock = clock or MonotonicClock()
        self.detokenize = detokenize
        self.residents = Residents.of(model, config.max_residents, self.max_loops)
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
        self.runner.contexts.plan_class = plan_class(self.attention)
        if config.graphs:
            self.runner.graphs = StageGraphs.of(self.runner, self.width, self.attention)
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
        self.intake = Intake(config, self.width, self.memory, self.clock, self.pacing)
        self.awaited = Awaited()
        """What launches have yet to say: taken once the host needs it, or when it is there."""
        self.memory.settle = self.awaited.take_all
        self.new_tokens = NewTokens(
            self.width, self.runner, self.schedule, self.clock, detokenize, self.awaited
        )
        self.routing = Routing(self.runner, self.schedule, self.new_tokens, self.awaited)
        self._known: set[str] = set()
        """Ids from submission until their results are taken."""

    # The caller's side.

    def submit(self, request: Request) -> None:
        """Queue a request for its arrival time.

        Raises:
            UsageError: it is malformed, or its id is that of a request whose result is to come.
        """
        request = adapt(self.mode, request)
        check_request(request, self.model.dims, self.max_loops, self.detokenize is not None)
        if request.id in self._known:
            raise UsageError(
                f"request {request.id!r}: another one of this id is being served, and both would "
                "draw the same tokens; give each an id of its own"
            )
        self._known.add(request.id)
        if not self.cache.could_ever_hold(request.positions):
            self.new_tokens.done.append(refused(request, self.cache, self.clock.now()))
        else:
            self.intake.arrivals.submit(request)

    def run(self, requests: Iterable[Request] = ()) -> Iterator[RequestResult]:
        """Serve until nothing is left; yields each result as it finishes."""
        for request in requests:
            self.submit(request)
        done = self.new_tokens.done
        while True:
            while done:
                ended = done.popleft()
                self._known.discard(ended.request.id)
                yield ended.result(self.detokenize)
            if not self.tick() and not done:
                return

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """End a request now, keeping what it produced. False where it is unknown or has finished.

        A request in the middle of its prefill is first brought to the end of it.
        """
        done = self.new_tokens.done
        request = self.intake.arrivals.withdraw(request_id)
        if request is not None:
            done.append(Ended(request, FinishReason.CANCELLED, self.clock.now()))
            return True
        away = self.memory.withdraw(request_id)
        if away is not None:
            done.append(withdrawn(away.resident, self.clock.now()))
            return True
        resident = self.residents.find(request_id)
        if resident is not None and resident in self.intake.preparing:
            self._finish_prefill()
            # Its first token may have been its last.
            resident = self.residents.find(request_id)
        if resident is None:
            return False
        self.schedule.leave(np.array([resident]))
        self.new_tokens.finish(resident, FinishReason.CANCELLED, None)
        return True

    @property
    def idle(self) -> bool:
        """Whether every request submitted has finished."""
        held = self.residents.occupied_count + len(self.memory.preempted)
        return not (self.intake.arrivals.pending_count or held or self.awaited)

    @property
    def ended_count(self) -> int:
        """Requests that have ended since ``run`` last took their results."""
        return len(self.new_tokens.done)

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

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture launches of every number of rows, where the configuration says ``graphs``.

        At the contexts that have come so far: after a warm-up, so that a timed run captures none.
        """
        if self.runner.graphs is not None:
            self.runner.graphs.capture()

    @property
    def captures(self) -> int | None:
        """Launches captured so far; None where none are."""
        return None if self.runner.graphs is None else self.runner.graphs.captures

    @property
    def note(self) -> str | None:
        """What must be said of how it ran; None for nothing."""
        graphs = self.runner.graphs
        said = [self.schedule.note, None if graphs is None else graphs.note]
        return "; ".join(note for note in said if note is not None) or None

    # One tick.

    @torch.inference_mode()
    def tick(self) -> bool:
        """Make one scheduling decision and carry it out. False when there is nothing left to do."""
        arrivals = self.intake.arrivals
        arrivals.arrive(self.clock.now())
        if self.memory.preempted:
            self.memory.restore()
        offered = self.intake.offers()
        rides = offered and self.intake.offers_ride()
        launch = self.schedule.next_launch(prefill_offered=offered, may_ride=rides)
        if launch is None and self.awaited:
            self.awaited.take_all()
            return True
        if launch is None:
            next_s = arrivals.next_s
            if next_s is not None:
                self.clock.wait_until(next_s)
            return next_s is not None
        self.runner.runnable = (
            self.residents.occupied_count + len(self.memory.preempted) + len(arrivals.waiting)
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
        launch = self.memory.make_room(launch, lambda: self.intake.preparing, self._finish_prefill)
        if not launch.residents.size:
            return 0
        if launch.work is Work.CORE:
            return self.routing.core(launch, self.intake.job if launch.rides else None)
        self.routing.coda(launch)
        return 0

    def _prefill(self) -> int:
        """Make a prefill's next launch; the prompt tokens that were in it."""
        tokens, first = self.intake.step()
        self.awaited.take_all()
        if first is not None:
            self.new_tokens.take_first(first)
        return tokens

    def _finish_prefill(self) -> None:
        while self.intake.job is not None:
            self._prefill()
