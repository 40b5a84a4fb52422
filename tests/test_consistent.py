"""A lone ``result.json`` that was edited contradicts itself, whichever figure it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cdbench.compare.baselines import timed_baseline
from cdbench.compare.consistent import block_values, contradictions
from cdbench.compare.fairness import differences_of
from cdbench.compare.sides import read_side
from cdbench.schema import ExitSettings, Result
from cdbench.schema.environment import Environment, Spread
from cdbench.schema.looks import LooksRecord
from cdbench.stats.blocks import geometric_mean, mean
from cdbench.stats.looks import looks_for
from tests.comparing import EVEN, answered, timed_result

BASE = timed_result({"static": [2.0 * f for f in EVEN], "cdb": [*reversed(EVEN)]})
"""Six noisy blocks in which the noise of one mode is not that of the other."""
REFERENCE = Path(__file__).parent.parent / "results" / "reference"
KEPT = [
    path
    for path in sorted({*REFERENCE.rglob("result.json"), *REFERENCE.glob("waterfall/*.json")})
    if '"validity"' in path.read_text()
]


def said(result: Result) -> str:
    return "; ".join(contradictions(result))


def edited(result: Result, change: Callable[[dict[str, Any]], None]) -> str:
    """What a result says against itself after an edit of its document."""
    document = json.loads(result.model_dump_json())
    change(document)
    return said(Result.model_validate(document))


def answers(tmp_path: Path) -> Result:
    given = {"static": [True] * 30 + [False] * 10, "cdb": [True] * 27 + [False] * 13}
    return read_side(str(answered(tmp_path / "a", given)), recheck=False).result


def looked() -> Result:
    """A run that looked several times: after six blocks its interval was narrow enough."""
    looks = looks_for(6, 0.5)
    logs = next(c.log_ratios for c in BASE.comparisons if (c.mode, c.scope) == ("cdb", "e2e"))
    last = looks.after(logs)
    assert last is not None
    assert last.level > 0.95
    config = {**BASE.config, "repeats": {"blocks": 6, "interval": 0.5}}
    document = json.loads(BASE.model_dump_json())
    for found in document["comparisons"]:
        wider = geometric_mean(found["log_ratios"], last.level)
        assert wider is not None
        found["speedup"] |= {"low": wider.low, "high": wider.high}
    for label, metrics in block_values(BASE.blocks).items():
        for name, found in document["modes"][label]["intervals"].items():
            wider = mean(metrics[name], last.level)
            assert wider is not None
            found |= {"low": wider.low, "high": wider.high}
    document |= {"config": config, "looks": LooksRecord.of(looks, last).model_dump(mode="json")}
    return Result.model_validate(document)


def test_what_was_not_edited_agrees_with_itself(tmp_path: Path) -> None:
    for result in (BASE, timed_baseline(BASE), answers(tmp_path)):
        assert said(result) == ""


def test_there_are_reference_results() -> None:
    assert len(KEPT) >= 3


@pytest.mark.parametrize("path", KEPT, ids=lambda path: str(path.relative_to(REFERENCE)))
def test_no_reference_result_is_under_suspicion(path: Path) -> None:
    result = Result.model_validate_json(path.read_text())
    assert said(result) == ""
    assert said(timed_baseline(result)) == ""


@pytest.mark.parametrize("key", ["low", "high", "n"])
def test_the_interval_of_a_speed_up_follows_from_its_blocks(key: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["comparisons"][0]["speedup"][key] += 1

    assert f"(e2e).{key}" in edited(BASE, change)


@pytest.mark.parametrize("key", ["low", "high", "n"])
def test_the_interval_of_a_metric_follows_from_its_blocks(key: str) -> None:
    def change(document: dict[str, Any]) -> None:
        document["modes"]["cdb"]["intervals"]["output_throughput"][key] += 1

    assert f"modes.cdb.intervals.output_throughput.{key}" in edited(BASE, change)


def test_an_interval_that_was_taken_out_is_missed() -> None:
    found = edited(BASE, lambda document: document["modes"]["cdb"]["intervals"].clear())
    assert "modes.cdb.intervals.output_throughput" in found


def test_intervals_have_the_level_of_the_look_that_the_run_ended_at() -> None:
    result = looked()
    assert said(result) == ""

    def narrowed(document: dict[str, Any]) -> None:
        for each, base in zip(document["comparisons"], BASE.comparisons, strict=True):
            each["speedup"] = base.speedup.model_dump(mode="json")

    assert "speed-up" in edited(result, narrowed)

    def relabelled(document: dict[str, Any]) -> None:
        narrowed(document)
        document["looks"]["level"] = 0.95

    assert "looks.level" in edited(result, relabelled)

    def forgotten(document: dict[str, Any]) -> None:
        narrowed(document)
        document["looks"] = None

    assert "looks" in edited(result, forgotten)


@pytest.mark.parametrize(
    ("where", "key", "value", "words"),
    [
        (("rate",), "estimate", 0.99, "no whole number"),
        (("rate",), "estimate", 0.95, "accuracy.cdb.rate"),
        (("rate",), "low", 0.9, "accuracy.cdb.rate.low"),
        (("tasks", "sums", "rate"), "estimate", 0.95, "accuracy.cdb.sums.rate"),
        (("by_task", "sums"), "high", 1.0, "accuracy.cdb.sums.rate"),
        (("paired",), "verdict", "within", "paired.verdict"),
        (("paired",), "mcnemar_p", 0.9, "paired.mcnemar_p"),
        (("paired",), "lost", 1, "accuracy.cdb.difference"),
        (("paired",), "gained", 100, "lost and 100 gained of 40"),
        (("paired", "difference"), "high", 0.2, "accuracy.cdb.difference.high"),
        (("tasks", "sums", "paired"), "verdict", "within", "sums.paired.verdict"),
    ],
)
def test_rates_and_paired_differences_follow_from_counts(
    where: tuple[str, ...], key: str, value: Any, words: str, tmp_path: Path
) -> None:
    def change(document: dict[str, Any]) -> None:
        found = document["accuracy"]["modes"]["cdb"]
        for part in where:
            found = found[part]
        found[key] = value

    assert words in edited(answers(tmp_path), change)


def test_a_gain_that_no_rate_shows_is_one_too_many(tmp_path: Path) -> None:
    """Lost and gained that agree with their own difference must be those of the rates as well."""
    better = {"static": [True] * 30 + [False] * 10, "cdb": [True] * 33 + [False] * 7}
    other = read_side(str(answered(tmp_path / "b", better)), recheck=False).result
    assert other.accuracy is not None
    paired = other.accuracy.modes["cdb"].paired
    assert paired is not None

    def change(document: dict[str, Any]) -> None:
        document["accuracy"]["modes"]["cdb"]["paired"] = paired.model_dump(mode="json")

    assert "accuracy.cdb.difference" in edited(answers(tmp_path), change)


@pytest.mark.parametrize(
    ("verdict", "reasons", "timing", "words"),
    [
        ("VALID", ["too warm"], [], "VALID with 1 reason"),
        ("INVALID", [], [], "INVALID with 0 reasons"),
        ("INVALID", ["one"], ["two"], "'two' is none of its reasons"),
    ],
)
def test_a_verdict_is_that_of_its_reasons(
    verdict: str, reasons: list[str], timing: list[str], words: str
) -> None:
    validity = {"verdict": verdict, "reasons": reasons, "flags": [], "timing": timing}
    assert words in edited(BASE, lambda document: document.update(validity=validity))


def test_too_few_blocks_and_an_interruption_are_never_valid() -> None:
    few = timed_result({"static": [2.0, 2.1], "cdb": [1.0, 1.1]})
    assert "2 whole blocks were timed" in said(few)
    assert "the run was interrupted" in said(BASE.model_copy(update={"status": "interrupted"}))
    invalid = {"validity": {"verdict": "INVALID", "reasons": ["few"]}, "status": "interrupted"}
    assert said(Result.model_validate({**few.model_dump(), **invalid})) == ""


@pytest.mark.parametrize(
    ("median", "high", "n", "spoiled"),
    [
        (0.3, 0.4, 20, True),  # half of the spans or more lie above the limit of 0.2
        (0.1, 0.4, 20, False),  # one of them does: within what is let pass
        (0.1, 0.4, 3, True),  # one of three is more than a quarter
    ],
)
def test_a_machine_whose_figures_spoil_a_run_leaves_no_valid_one(
    median: float, high: float, n: int, spoiled: bool
) -> None:
    crowded = Spread(median=median, low=0.0, high=high, n=n)
    seen = Environment(repeats=n, wall_s=1.0, compute_threads=2, figures={"crowding": crowded})
    found = said(BASE.model_copy(update={"environment": seen}))
    assert ("environment.figures.crowding" in found) == spoiled


def test_an_exit_key_that_nobody_set_counts_as_it_ran() -> None:
    """``none`` is a rule of its own: what was left to the card ran as the card says."""
    unset, named, other = (
        {**BASE.config, "exit": {"rule": rule, "threshold": threshold, "max_loops": loops}}
        for rule, threshold, loops in ((None, None, None), ("cdf", 0.99, 4), ("cdf", 0.5, 4))
    )

    def ran(config: Mapping[str, Any], threshold: float) -> Result:
        settings = ExitSettings(rule="cdf", threshold=threshold)
        cdb = BASE.modes["cdb"].model_copy(update={"exit": settings})
        return BASE.model_copy(update={"config": config, "modes": {**BASE.modes, "cdb": cdb}})

    assert differences_of(ran(unset, 0.99), ran(named, 0.99)) == []
    (found,) = differences_of(ran(unset, 0.99), ran(other, 0.5))
    assert (found.what, found.base, found.run) == ("exit.threshold", "0.99", "0.5")
    still = {mode: row for mode, row in BASE.modes.items() if mode == "static"}
    untold = [ran(c, 0.5).model_copy(update={"modes": still}) for c in (unset, named)]
    rules = {d.what: (d.base, d.run) for d in differences_of(*untold)}
    assert rules["exit.rule"] == ("the card's", "cdf")
