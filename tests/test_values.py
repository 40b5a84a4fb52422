"""Extreme values of keys: taken where they mean something, else refused in one line beforehand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cdbench.bench.benchmark import check_interval
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.workload import prepare
from cdbench.config import RunConfig, load_config
from cdbench.errors import UsageError

KEYS = {
    **{"model": "demo-ouro", "dense": "", "modes": "static,cdb", "work": "equal"},
    **{"limit": 2, "workload.requests": 4, "device": "cpu"},
}
HUGE = "99999999999999999999999"
LONG = "x" * 300


@cache
def base_plan() -> Plan:
    return make_plan(load_config(None, (), KEYS))


def sound(override: str) -> RunConfig:
    """The configuration, and all that is checked before anything runs. The model is loaded once."""
    key, _, _ = override.partition("=")
    flags = {name: value for name, value in KEYS.items() if name != key}
    config = load_config(None, (override,), flags)
    check_interval(config)
    if key.startswith("workload."):
        prepare(replace(base_plan(), config=config))
    elif key in ("kv.budget_bytes", "exit.min_loops", "exit.max_loops", "exit.threshold"):
        make_plan(config)
    return config


@pytest.mark.parametrize(
    "override",
    [
        "workload.arrivals=open-loop:1e300",
        "workload.arrivals=open-loop:1e-300",
        "workload.arrivals=open-loop:1e-9",
        "workload.arrivals=open-loop:1e308:0.01",
        "workload.arrivals=ramp:1e-300-1e300",
        "workload.arrivals=ramp:1e308-1e308",
        "workload.arrivals=ramp:1e-320-1e-320",
        f"workload.arrivals=closed-loop:{HUGE}",
        f"workload.arrivals=closed-loop:{'9' * 5000}",
        "workload.prompt_tokens=lognormal:999999999:1",
        "workload.prompt_tokens=lognormal:10:999999999",
        "workload.prompt_tokens=999999999",
        "workload.prompt_tokens=1-999999999",
        f"workload.prompt_tokens={HUGE}",
        "workload.prompt_tokens=257",
        "workload.output=1000000000",
        f"workload.max_new_tokens={HUGE}",
        f"workload.requests={HUGE}",
        "workload.seed=-1",
        f"workload.seed={HUGE}",
        f"sampling.seed={HUGE}",
        f"sampling.top_k={HUGE}",
        "sampling.temperature=.inf",
        "weights=random:-1",
        f"weights=random:{HUGE}",
        "kv.budget_bytes=1000000000000000",
        f"kv.budget_bytes={HUGE}",
        f"engine.max_residents={HUGE}",
        f"engine.width={HUGE}",
        f"engine.prefill_tokens={HUGE}",
        f"engine.coda_min_rows={HUGE}",
        f"engine.min_free_residents={HUGE}",
        f"exit.max_loops={HUGE}",
        f"exit.min_loops={HUGE}",
        "exit.threshold=1e300",
        "exit.threshold=.nan",
        f"repeats.blocks={HUGE}",
        "repeats.interval=0",
        "repeats.interval=1",
        "repeats.interval=.inf",
        "repeats.interval=.nan",
        "repeats.max_seconds=1e300",
        "slo.ttft_s=.inf",
        "slo.tpot_s=.nan",
        "slo.e2e_s=1e300",
        "price_per_hour=.inf",
        "price_per_hour=.nan",
        "price_per_hour=-1",
        "price_per_hour=1e308",
        f"model={LONG}",
        f"model={'x/' * 2100}",
        f"dense=[{LONG}]",
        f"modes=[static, cdb, 'dense:{LONG}']",
        f"tasks=[{LONG}]",
        f"stages={LONG}",
        f"exit='trace:{LONG}'",
        f"out=here/{LONG}/there",
        f"workload.source={LONG}.jsonl",
        f"workload.arrivals='trace:{LONG}'",
        'workload.source="a\\0b.jsonl"',
    ],
)
def test_values_that_no_run_survives_are_refused_in_one_line(override: str) -> None:
    with pytest.raises(UsageError) as caught:
        sound(override)
    message = str(caught.value)
    key = override.partition("=")[0]
    assert "\n" not in message
    assert all(part in message for part in (": ", "; ")), message  # what: why; what to do
    named = {
        "exit.threshold": "threshold",
        "exit.min_loops": "min_loops",
        "exit": "exit.trace_file",
        "workload.output": "new ones exceed the model's 256 positions",
    }
    assert named.get(key, key) in message.partition(";")[0]


@pytest.mark.parametrize(
    "override",
    [
        "workload.arrivals=open-loop:1000000",
        "workload.arrivals=ramp:1e-300-1000000",
        "workload.arrivals=ramp:1000000-1e-300",
        "workload.arrivals=closed-loop:1000000",
        "workload.prompt_tokens=lognormal:10:5",
        "workload.prompt_tokens=lognormal:10:0",
        "workload.requests=1000000",
        "workload.seed=9223372036854775807",
        "sampling.seed=9223372036854775807",
        "sampling.temperature=1e300",
        "weights=random:999999999999999999",
        "kv.budget_bytes=1000000",
        "engine.max_residents=65536",
        "repeats.blocks=1000000",
        "repeats.interval=1e-300",
        "slo.ttft_s=1e-300",
        "price_per_hour=1e12",
    ],
)
def test_values_at_the_bounds_are_taken(override: str) -> None:
    sound(override)


def test_a_budget_counts_for_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdbench.workloads.resolve.free_bytes", lambda _: 1999)
    with pytest.raises(UsageError, match=r"1,000 bytes for each of 2 modes .* 1,999 free on cpu"):
        sound("kv.budget_bytes=1000")
    assert make_plan(load_config(None, ("kv.budget_bytes=999",), KEYS)).kv_budget_bytes == 999


def test_the_first_look_needs_the_blocks_of_an_interval() -> None:
    with pytest.raises(UsageError, match=r"5 beside repeats\.interval, .* needs 6; raise it"):
        check_interval(load_config(None, ("repeats.interval=0.1", "repeats.blocks=5"), KEYS))
    check_interval(load_config(None, ("repeats.interval=0.1", "repeats.blocks=6"), KEYS))
    check_interval(load_config(None, ("repeats.blocks=5",), KEYS))


def test_a_configuration_file_with_an_endless_name_is_refused(tmp_path: Path) -> None:
    for path in (LONG, tmp_path / LONG, "a\0b"):
        with pytest.raises(UsageError, match=r"; (expected a YAML file|did you mean|known)"):
            load_config(path)
