"""When requests arrive: the grammar, the times it makes, and how they reach an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cdbench.bench.driver import LEAD_S, TimedRegion, feed
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.metrics.sustained import (
    OfferedLoad,
    SustainedRate,
    highest_sustained_rate,
    is_sustained,
)
from cdbench.metrics.trace import Arrivals, RunTrace, Slo
from cdbench.runtime.core import FinishReason, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.workloads.arrival_times import ArrivalProcess, ArrivalSchedule
from cdbench.workloads.arrivals import ArrivalSpec, parse_arrivals
from tests.tiny import StepClock, ouro

# The grammar.

rates = st.floats(1e-6, 1e6, allow_nan=False)
specs = st.one_of(
    st.just(ArrivalSpec()),
    st.builds(ArrivalSpec, st.just(Arrivals.CLOSED_LOOP), clients=st.integers(1, 10**6)),
    st.builds(
        ArrivalSpec,
        st.just(Arrivals.OPEN_LOOP),
        rate=rates,
        end_rate=st.none() | rates,
        burstiness=st.floats(0.01, 10_000),
    ),
    st.builds(
        ArrivalSpec, st.just(Arrivals.TRACE), file=st.text("abc./:-@é ", min_size=1, max_size=9)
    ),
)


@given(specs)
def test_what_is_written_reads_back(spec: ArrivalSpec) -> None:
    assert parse_arrivals(str(spec)) == spec


@given(st.text("open-lp:closd123.ramtceKf", max_size=24))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        spec = parse_arrivals(text)
    except UsageError as error:
        complaint = str(error)
    else:
        complaint = "workload.arrivals: none"
        assert parse_arrivals(str(spec)) == spec
    assert complaint.startswith("workload.arrivals: ")
    assert "\n" not in complaint


@pytest.mark.parametrize(
    "text",
    [
        *("", "poisson", "all-at-once:3", "closed-loop", "closed-loop:0", "closed-loop:1.5"),
        *("open-loop", "open-loop:0", "open-loop:-1", "open-loop:nan", "open-loop:1e999"),
        *("open-loop:1:0", "open-loop:1:2:3", "ramp:1", "ramp:0-2", "ramp:1-", "trace:"),
    ],
)
def test_no_arrivals(text: str) -> None:
    with pytest.raises(UsageError, match=r"workload\.arrivals"):
        parse_arrivals(text)
    with pytest.raises(UsageError, match=r"workload\.arrivals"):
        load_config(None, (f"workload.arrivals={text!r}",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("closed-loop:0", "number of clients out of range; use 1 to 1,000,000"),
        ("closed-loop:-3", "number of clients out of range"),
        ("closed-loop:two", "not of the form closed-loop:CLIENTS"),
        ("open-loop:-3", "rate out of range; give requests per second above 0"),
        ("open-loop:1e7", "rate out of range"),
        ("ramp:1--5", "rate out of range"),
        ("ramp:5", r"not of the form ramp:RATE1-RATE2"),
        ("open-loop:1:-2", "burstiness -2; use 0.01"),
        ("trace", "not of the form trace:FILE"),
        ("all-at-once:2", "not of the form all-at-once"),
        ("opnloop:2", "is unknown; write all-at-once, closed-loop:CLIENTS"),
    ],
)
def test_a_known_process_is_not_called_unknown(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_arrivals(text)


def test_the_configuration_keeps_the_shortest_spelling() -> None:
    config = load_config(None, ("workload.arrivals=open-loop:4.0:1.0",))
    assert config.workload.arrivals == "open-loop:4"


@pytest.mark.parametrize(
    ("text", "kind", "allowed"),
    [
        ("all-at-once", Arrivals.ALL_AT_ONCE, True),
        ("closed-loop:4", Arrivals.CLOSED_LOOP, True),
        ("open-loop:4", Arrivals.OPEN_LOOP, False),
        ("ramp:1-4", Arrivals.OPEN_LOOP, False),
        ("trace:t.txt", Arrivals.TRACE, False),
    ],
)
def test_walls_form_ratios_only_where_the_engine_sets_the_pace(
    text: str, kind: Arrivals, allowed: bool
) -> None:
    schedule = ArrivalSchedule(parse_arrivals(text))
    assert (schedule.kind, schedule.wall_ratios_allowed) == (kind, allowed)


# The times.


def offsets(text: str, requests: int, seed: int = 0) -> np.ndarray:
    made = ArrivalProcess.read(parse_arrivals(text), seed).schedule(requests).offsets_s
    assert made is not None
    return np.array(made)


@given(
    rate=st.floats(0.01, 1000),
    end_rate=st.none() | st.floats(0.01, 1000),
    burstiness=st.floats(0.05, 100),
    requests=st.integers(1, 200),
    seed=st.integers(0, 9),
)
def test_the_last_arrival_lands_at_n_over_the_mean_rate(
    rate: float, end_rate: float | None, burstiness: float, requests: int, seed: int
) -> None:
    spec = ArrivalSpec(Arrivals.OPEN_LOOP, None, rate, end_rate, burstiness)
    made = offsets(str(spec), requests, seed)
    mean = rate if end_rate is None else (rate + end_rate) / 2
    assert made[-1] == pytest.approx(requests / mean, rel=1e-12)
    assert made[0] >= 0
    assert (np.diff(made) >= -1e-9 * made[-1]).all()


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_sets_how_much_gaps_vary(burstiness: float) -> None:
    """The coefficient of variation of a gamma distribution is 1/√shape."""
    gaps = np.diff(offsets(f"open-loop:3:{burstiness}", 20_000), prepend=0)
    assert gaps.mean() == pytest.approx(1 / 3, rel=1e-9)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / math.sqrt(burstiness), rel=0.03)


def test_a_ramp_grows_linearly_in_time() -> None:
    made = offsets("ramp:2-6:10000", 4000)
    last_s = 4000 / 4
    for share in (0.25, 0.5, 0.75):
        when = share * last_s
        expected = 2 * when + (6 - 2) * when**2 / (2 * last_s)
        assert np.searchsorted(made, when) == pytest.approx(expected, abs=4)
    falling = offsets("ramp:6-2:10000", 4000)
    assert np.searchsorted(falling, last_s / 2) == pytest.approx(4000 - 3 / 8 * 4000, abs=4)
    almost_ends = offsets("ramp:1000000-1e-300", 500)
    assert (np.diff(almost_ends) >= 0).all()
    flat = offsets("ramp:3-3:2", 50)
    assert flat == pytest.approx(offsets("open-loop:3:2", 50), rel=1e-12)


@pytest.mark.parametrize("text", ["open-loop:1e-4", "ramp:1e-300-1e-300", "trace:{}"])
def test_nobody_waits_longer_than_a_day(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.txt"
    file.write_text("0\n10\n86401\n1e300\n")
    with pytest.raises(UsageError, match="days, a run waits at most one") as caught:
        offsets(text.format(file), 9 if "trace" not in text else 3)
    assert "\n" not in str(caught.value)
    assert offsets("open-loop:1e-4", 8)[-1] == 80_000
    assert offsets(f"trace:{file}", 2)[-1] == 10


def test_arrivals_follow_from_the_seed_and_stay_the_same() -> None:
    assert offsets("open-loop:2", 4, seed=1).tolist() == offsets("open-loop:2", 4, 1).tolist()
    assert offsets("open-loop:2", 4, seed=1).tolist() != offsets("open-loop:2", 4, 2).tolist()
    # Written down: a change here is a change of everybody's workload hash.
    assert offsets("open-loop:2", 4).round(6).tolist() == FIRST_OFFSETS


FIRST_OFFSETS = [0.042078, 0.600206, 1.68921, 2.0]


def test_a_trace_has_seconds_or_records(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('0\n0.5\n\n{"arrival_s": 0.5, "x": 1}\n{"arrival_s": 3}\n')
    assert offsets(f"trace:{file}", 4).tolist() == [0, 0.5, 0.5, 3]
    assert offsets(f"trace:{file}", 2).tolist() == [0, 0.5]
    with pytest.raises(UsageError, match="holds 4 arrivals for 5 requests"):
        offsets(f"trace:{file}", 5)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "holds no arrival"),
        ("one\n", ":1: 'one'"),
        ("0\n-1\n", ":2: '-1'"),
        ("0\nnan\n", ":2: 'nan'"),
        ('{"at": 1}\n', ":1: "),
        ('{"arrival_s": true}\n', ":1: "),
        ("[1]\n", ":1: "),
        ("2\n1\n", "sort the arrivals"),
    ],
)
def test_a_bad_trace_names_its_line(tmp_path: Path, content: str, named: str) -> None:
    file = tmp_path / "t.txt"
    file.write_text(content)
    with pytest.raises(UsageError, match=named):
        ArrivalProcess.read(parse_arrivals(f"trace:{file}"), 0)
    with pytest.raises(UsageError, match="No such file"):
        ArrivalProcess.read(parse_arrivals(f"trace:{tmp_path / 'no.txt'}"), 0)


def test_the_rate_that_a_schedule_offers(tmp_path: Path) -> None:
    def rate(text: str) -> float | None:
        return ArrivalProcess.read(parse_arrivals(text), 0).schedule(40).offered_rate

    assert rate("open-loop:4:0.5") == pytest.approx(4)
    assert rate("ramp:1-4") == pytest.approx(2.5)
    assert rate("closed-loop:4") is None
    assert rate("all-at-once") is None
    (tmp_path / "t").write_text("\n".join(str(i / 2) for i in range(1, 41)))
    assert rate(f"trace:{tmp_path / 't'}") == pytest.approx(2)


def test_what_the_hash_covers_of_arrivals() -> None:
    closed = ArrivalProcess.read(parse_arrivals("closed-loop:3"), 0).schedule(5)
    assert (closed.offsets_s, closed.identity) == (None, "closed-loop:3")
    schedule = ArrivalSchedule(parse_arrivals("open-loop:1"), (0.25, 1 / 3))
    nudged = ArrivalSchedule(schedule.spec, (0.25, 1 / 3 + 1e-12))
    assert schedule.identity == nudged.identity == ["0.250000", "0.333333"]


# How they reach an engine.


@dataclass
class FakeClock:
    time_s: float = 0.0

    def now(self) -> float:
        return self.time_s

    def wait_until(self, when_s: float) -> None:
        self.time_s = max(self.time_s, when_s)


@dataclass
class OneServer:
    """Serves one request after the other, each in the seconds its script says."""

    service_s: dict[str, float]
    clock: FakeClock = field(default_factory=FakeClock)
    waiting: list[Request] = field(default_factory=list)
    finished: list[tuple[str, float, float]] = field(default_factory=list)
    refuses: frozenset[str] = frozenset()

    @property
    def ended_count(self) -> int:
        return len(self.finished)

    def submit(self, request: Request) -> None:
        if request.id in self.refuses:
            self.finished.append((request.id, request.arrival_s, self.clock.now()))
        else:
            self.waiting.append(request)

    def tick(self) -> bool:
        if not self.waiting:
            return False
        self.waiting.sort(key=lambda request: request.arrival_s)
        if self.waiting[0].arrival_s > self.clock.now():
            self.clock.wait_until(self.waiting[0].arrival_s)
            return True
        request = self.waiting.pop(0)
        self.clock.time_s += self.service_s[request.id]
        self.finished.append((request.id, request.arrival_s, self.clock.now()))
        return True


def three() -> list[Request]:
    return [Request(name, prompt=[1, 2, 3], max_new_tokens=1) for name in "abc"]


def test_all_at_once_everything_arrives_at_the_start() -> None:
    engine = OneServer({"a": 2, "b": 3, "c": 1}, FakeClock(10))
    assert feed(engine, three(), ArrivalSchedule()) == TimedRegion(10, 16)
    assert engine.finished == [("a", 10, 12), ("b", 10, 15), ("c", 10, 16)]


def test_in_an_open_loop_latency_counts_from_the_scheduled_arrival() -> None:
    engine = OneServer({"a": 4, "b": 1, "c": 1}, FakeClock(10))
    schedule = ArrivalSchedule(parse_arrivals("trace:t"), (0.5, 1.0, 9.0))
    region = feed(engine, three(), schedule)
    assert region.start_s == pytest.approx(10 + LEAD_S, abs=0.01)
    assert [name for name, _, _ in engine.finished] == ["a", "b", "c"]
    seen = [at - region.start_s for _, *times in engine.finished for at in times]
    # b comes while a is served: its wait counts. Nobody is there before c: that is no latency.
    assert seen == pytest.approx([0.5, 4.5, 1.0, 5.5, 9.0, 10.0])
    assert region.wall_s == pytest.approx(10.0)


def test_in_a_closed_loop_an_end_brings_the_next_request() -> None:
    engine = OneServer({"a": 2, "b": 3, "c": 1}, FakeClock(10))
    region = feed(engine, three(), ArrivalSchedule(parse_arrivals("closed-loop:2")))
    assert engine.finished == [("a", 10, 12), ("b", 10, 15), ("c", 12, 16)]
    assert region == TimedRegion(10, 16)


@pytest.mark.parametrize("clients", [1, 2, 3, 9])
@pytest.mark.parametrize("refused", ["", "a", "b", "abc"])
def test_a_closed_loop_serves_everything_with_no_more_than_its_clients(
    clients: int, refused: str
) -> None:
    engine = OneServer({"a": 2, "b": 3, "c": 1}, refuses=frozenset(refused))
    engine.finished.append(("earlier", 0, 0))
    feed(engine, three(), ArrivalSchedule(parse_arrivals(f"closed-loop:{clients}")))
    assert sorted(name for name, _, _ in engine.finished) == ["a", "b", "c", "earlier"]
    spans = [(at, end) for name, at, end in engine.finished if name in "abc" and at < end]
    for at, _ in spans:
        assert sum(start <= at < end for start, end in spans) <= clients


@pytest.mark.parametrize("text", ["all-at-once", "closed-loop:2", "open-loop:0.01", "ramp:0.01-1"])
def test_arrivals_change_no_token_of_a_real_engine(text: str) -> None:
    requests = [Request(str(i), prompt=[1 + i, 2, 3], max_new_tokens=2 + i % 3) for i in range(5)]
    alone = {}
    model = ouro(torch.float64)
    config = EngineConfig(mode="cdb", max_residents=3)
    for request in requests:
        alone[request.id] = next(Engine(model, config).run([request])).tokens
    engine = Engine(model, config, clock=StepClock())
    schedule = ArrivalProcess.read(parse_arrivals(text), 0).schedule(len(requests))
    region = feed(engine, requests, schedule)
    assert engine.ended_count == len(requests)
    results = list(engine.run())
    assert engine.ended_count == 0
    assert {r.id: r.tokens for r in results} == alone
    assert all(r.finish_s <= region.end_s for r in results)
    if schedule.offsets_s is not None:
        arrived = {r.id: r.arrival_s - region.start_s for r in results}
        expected = dict(zip("01234", schedule.offsets_s, strict=True))
        assert arrived == pytest.approx(expected)


# The highest rate that is sustained.


def served(id: str, arrival_s: float, first_s: float, finish_s: float) -> RequestResult:
    return RequestResult(
        *(id, 3, [1, 2], [4, 1], [4, 1], [0.0, 0.0], None, None, FinishReason.LENGTH, None),
        arrival_s=arrival_s,
        admitted_s=arrival_s,
        token_s=[first_s, finish_s],
        finish_s=finish_s,
    )


def test_a_run_shows_what_became_of_a_rate() -> None:
    requests = [served("a", 0, 1, 2), served("b", 1, 1.5, 2.5), served("c", 2, 4, 5)]
    trace = RunTrace("cdb", requests, [], 6.0, 4, 4, 4, slo=Slo(ttft_s=1.0))
    assert OfferedLoad.of(trace, 0.75) == OfferedLoad(0.75, 3 / 6, 2 / 3)
    assert OfferedLoad.of(RunTrace("cdb", requests, [], 6.0, 4, 4, 4), 1.0).attainment is None


def test_a_rate_is_sustained_that_is_kept_up_with_and_keeps_its_limits() -> None:
    assert is_sustained(OfferedLoad(10, 9.5))
    assert not is_sustained(OfferedLoad(10, 9.4))
    assert is_sustained(OfferedLoad(10, 9.5, 0.9))
    assert not is_sustained(OfferedLoad(10, 10.0, 0.89))
    assert is_sustained(OfferedLoad(10, 9.0, 0.5), completed_share=0.9, attainment=0.5)


def test_the_highest_sustained_rate_lies_below_the_first_that_failed() -> None:
    good, bad = (lambda r: OfferedLoad(r, r)), (lambda r: OfferedLoad(r, r / 2))
    assert highest_sustained_rate([good(4), good(1), good(2)]) == SustainedRate(4, None)
    assert highest_sustained_rate([good(8), bad(4), good(2), good(1)]) == SustainedRate(2, 4)
    assert highest_sustained_rate([good(2), bad(2), good(1)]) == SustainedRate(1, 2)
    assert highest_sustained_rate([bad(1), good(2)]) == SustainedRate(None, 1)
    assert highest_sustained_rate([]) == SustainedRate(None, None)


def test_a_rate_that_was_not_judged_ends_the_search() -> None:
    good, bad = (lambda r: OfferedLoad(r, r)), (lambda r: OfferedLoad(r, r / 2))
    found = highest_sustained_rate([good(1), good(4)], unjudged=[2])
    assert found == SustainedRate(1, None, 2)
    assert highest_sustained_rate([good(1), bad(4)], unjudged=[2, 3]) == SustainedRate(1, 4, 2)
    assert highest_sustained_rate([good(1), bad(4)], unjudged=[8]) == SustainedRate(1, 4)
    assert highest_sustained_rate([good(2)], unjudged=[2]) == SustainedRate(None, None, 2)
    assert highest_sustained_rate([bad(2)], unjudged=[1]) == SustainedRate(None, 2, 1)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("open-loop:4", 4.0), ("ramp:1-4", 2.5), ("all-at-once", None), ("closed-loop:2", None)],
)
def test_a_ramp_offers_its_mean_rate(text: str, rate: float | None) -> None:
    spec = parse_arrivals(text)
    assert spec.mean_rate == rate
    if rate is not None:
        offered = ArrivalProcess.read(spec, 0).schedule(40).offered_rate
        assert offered == pytest.approx(rate)


def test_gaps_are_drawn_apart_from_lengths_and_prompts() -> None:
    """The same seed for all of them must not make long prompts come together."""
    gaps = np.diff(offsets("open-loop:1", 500), prepend=0)
    config = load_config(None, ("workload.prompt_tokens=lognormal:100:1",))
    from cdbench.workloads.lengths import parse_lengths

    lengths = parse_lengths(str(config.workload.prompt_tokens)).draw(500, 0)
    assert abs(np.corrcoef(gaps, lengths)[0, 1]) < 0.15
    assert all(a <= b for a, b in pairwise(np.cumsum(gaps)))
