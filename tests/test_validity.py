"""One spoiled run of each kind is INVALID or flagged with the right reason; a sound one neither."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdbench.bench.validity import RunFacts, TimedFacts, judge
from cdbench.metrics.cost import break_even
from cdbench.metrics.energy import energy_per_token, peak_device_bytes
from cdbench.metrics.trace import RunTrace
from cdbench.schema import BreakEvenRecord, CpuEnvironment, RepeatEnvironment, Validity, to_json
from cdbench.stats.interval import Interval
from tests.test_metrics import TRACE


def machine(foreign_cores: float = 0.02) -> list[RepeatEnvironment]:
    """A run's 48 repeats of one second on both of two cores."""
    cpu = CpuEnvironment(
        usable_cores=2, own_cpu_s=1.9, foreign_cpu_s=foreign_cores, steal_s=0.0, run_wait_s=0.01
    )
    return [RepeatEnvironment(wall_s=1.0, cpu=cpu)] * 48


TIMED = TimedFacts(blocks=6, requests=224)
SOUND = RunFacts(
    timed=TIMED,
    length_ratios={"cdb": 1.02, "lockstep": 0.95},
    environment=machine(),
    compute_threads=2,
)


def capturing(*captures: int) -> list[RepeatEnvironment]:
    """Repeats during which so many launches were captured."""
    return [machine()[0].model_copy(update={"captures": n}) for n in captures]


def timed(**changes: object) -> RunFacts:
    return replace(SOUND, timed=replace(TIMED, **changes))  # type: ignore[arg-type]


def test_a_sound_run_is_valid_without_a_word() -> None:
    found = judge(SOUND)
    assert found == Validity(verdict="VALID")
    assert judge(RunFacts()).verdict == "VALID", "nothing timed, nothing wrong"


SPOILED = {
    "failing request, live": (
        replace(SOUND, live_errors={"cdb": ["never fits"], "static": []}),
        "live cdb: 1 request was refused (never fits)",
    ),
    "failing request, timed": (
        replace(SOUND, refused=["too long", "too long"]),
        "2 workload requests were refused (too long)",
    ),
    "unequal tokens": (
        timed(unequal=["mode cdb: 99 output tokens instead of 100"]),
        "mode cdb: 99 output tokens instead of 100",
    ),
    "broken identity": (timed(broken_identities=["token_loops"]), "token_loops"),
    "too few blocks": (timed(blocks=5), "5 blocks were timed; an interval needs 6"),
    "one block": (timed(blocks=1), "1 block was timed; an interval needs 6"),
    "no requests": (timed(requests=0), "no request"),
    "random prompts": (timed(random_prompts=True), "the prompts are random token ids"),
    "graph capture": (
        replace(SOUND, environment=[*machine(), *capturing(0, 2)]),
        "2 graphs were captured inside a timed region",
    ),
    "changed source": (
        replace(SOUND, changed_sources=["a.py", "b.py", "c.py", "d.py"]),
        "cdbench changed while it ran (a.py, b.py, c.py and 1 more)",
    ),
    "changed model": (
        replace(SOUND, changed_models=["model.safetensors"]),
        "model files changed during the run (model.safetensors)",
    ),
    "busy CPU": (
        replace(SOUND, environment=machine(foreign_cores=1.0)),
        "other processes took 50% (most: 50%) of the cores this run computes on",
    ),
    "interrupted": (replace(SOUND, interrupted=True), "interrupted"),
    "found elsewhere": (replace(SOUND, reasons=["the curves are stale"]), "the curves are stale"),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_run_is_invalid_with_its_reason(kind: str) -> None:
    facts, words = SPOILED[kind]
    found = judge(facts)
    assert found.verdict == "INVALID"
    assert len(found.reasons) == 1
    assert words in found.reasons[0]
    assert found.flags == []


FLAGGED = {
    "longer": (replace(SOUND, length_ratios={"cdb": 1.11}), "cdb: its own outputs are 1.11 times"),
    "shorter": (replace(SOUND, length_ratios={"cdb": 0.89}), "cdb: its own outputs are 0.89 times"),
    "random prompts, replayed": (
        timed(random_prompts=True, depths_from="trace"),
        "the prompts are random token ids; their depths are not their own",
    ),
    "synthetic depths": (timed(depths_from="synthetic"), "synthetic depths"),
    "too few samples": (
        timed(shows_latency=True, requests=100),
        "100 requests are too few for the percentiles p95 (130), p99 (662)",
    ),
    "a little company": (
        replace(SOUND, environment=machine(foreign_cores=0.3)),
        "other processes took 15% (most: 15%) of the cores",
    ),
    "found elsewhere": (replace(SOUND, flags=["9% of prompts repeat"]), "9% of prompts repeat"),
}


@pytest.mark.parametrize("kind", FLAGGED)
def test_what_must_be_minded_is_flagged_and_stays_valid(kind: str) -> None:
    facts, words = FLAGGED[kind]
    found = judge(facts)
    assert (found.verdict, found.reasons) == ("VALID", [])
    assert len(found.flags) == 1
    assert words in found.flags[0]


def test_every_reason_is_given_once() -> None:
    found = judge(
        replace(
            timed(blocks=2, broken_identities=["same", "same"]),
            changed_sources=["a.py"],
            refused=["x"],
            flags=["f", "f"],
        )
    )
    assert len(found.reasons) == 4
    assert found.flags == ["f"]
    assert Validity.model_validate_json(to_json(found)) == found


def test_an_interrupted_run_is_not_blamed_for_what_it_did_not_reach() -> None:
    facts = replace(timed(blocks=1, unequal=["torn"]), interrupted=True)
    assert judge(facts).reasons == ["the run was interrupted before it was complete"]


def test_enough_requests_show_every_percentile() -> None:
    assert judge(timed(shows_latency=True, requests=662)).flags == []
    assert judge(timed(shows_latency=False, requests=3)).flags == []


# Energy and price.


def test_energy_is_undefined_without_a_counter_and_never_zero() -> None:
    assert energy_per_token(TRACE) == pytest.approx(3.0 / 6)
    assert energy_per_token(replace(TRACE, energy_j=None)) is None
    assert energy_per_token(replace(TRACE, energy_j=0.0)) is None, "the counter did not move"
    nothing = RunTrace("cdb", [], [], 5.0, 2, 2, 4, energy_j=3.0)
    assert energy_per_token(nothing) is None
    assert peak_device_bytes(nothing) is None


def test_break_even_by_hand() -> None:
    """At 2.40 an hour and 1.6 times the speed, the baseline breaks even at 1.50 an hour."""
    found = break_even("cdb", "static", 2.40, Interval(1.6, 1.5, 2.0, 6))
    assert found.price_ratio.estimate == 1.6
    price = found.baseline_price_per_hour
    assert price.estimate == pytest.approx(1.50)
    assert price.low == pytest.approx(1.20)
    assert price.high == pytest.approx(1.60)
    record = BreakEvenRecord.of(found)
    assert BreakEvenRecord.model_validate_json(to_json(record)) == record


def test_break_even_without_an_interval_and_without_a_price() -> None:
    few = break_even("cdb", "static", 1.0, Interval(0.5, None, None, 2))
    assert few.baseline_price_per_hour == Interval(2.0, None, None, 2)
    with pytest.raises(ValueError, match="above 0"):
        break_even("cdb", "static", 0.0, Interval(0.5, None, None, 2))
