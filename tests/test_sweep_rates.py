"""What a sweep says of arrival rates, and of cells that should have been alike and were not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdbench.cli.main import main
from cdbench.config import RunConfig
from cdbench.schema import (
    BlockRecord,
    Manifest,
    ModelIdentity,
    Result,
    Validity,
    Workload,
    write_result,
)
from cdbench.sweep import runners
from cdbench.sweep.likeness import other_models, other_workloads
from cdbench.sweep.sustained import setting_of
from cdbench.workloads.arrivals import parse_arrivals
from tests.test_schema import MANIFEST, small_result
from tests.test_sweep import sweep_of

REQUESTS = 20
CAN_DO = {"static": 3.0, "cdb": 6.0}
"""Requests per second that each mode can finish."""


class FakeRates:
    """A machine with a limit per mode; two blocks a round, the second a little faster."""

    def __init__(self) -> None:
        self.bad: set[tuple[str, int]] = set()
        """Arrivals and round that come out INVALID."""
        self.late = 0
        """Requests of ``cdb`` that miss their limit."""

    def __call__(self, config: RunConfig, directory: Path) -> bool:
        rate = parse_arrivals(config.workload.arrivals).mean_rate or 100.0
        number = int(directory.parent.name.removeprefix("round-"))
        blocks = [
            self.run(config, mode, min(rate, CAN_DO[mode]) * (0.99 + 0.02 * index), (index, order))
            for index in (0, 1)
            for order in (0, 1)
            for mode in CAN_DO
        ]
        bad = (config.workload.arrivals, number) in self.bad
        result = result_of(
            blocks=blocks,
            validity=Validity(
                verdict="INVALID" if bad else "VALID", reasons=["a busy CPU"] if bad else []
            ),
        )
        directory.mkdir(parents=True)
        write_result(directory, result)
        return True

    def run(
        self, config: RunConfig, mode: str, throughput: float, place: tuple[int, int]
    ) -> BlockRecord:
        wall_s = REQUESTS / throughput
        met = REQUESTS - (self.late if mode == "cdb" else 0)
        return BlockRecord(
            index=place[0],
            order=place[1],
            mode=mode,
            wall_s=wall_s,
            metrics={
                "request_throughput": throughput,
                "goodput": None if config.slo.tpot_s is None else met / wall_s,
            },
        )


def result_of(
    models: list[ModelIdentity] | None = None, workload: str = "ab", **changes: Any
) -> Result:
    work = Workload(
        hash=workload, source="demo", requests=REQUESTS, prompt_tokens=9, arrivals="open-loop"
    )
    manifest = Manifest.model_validate({**MANIFEST.model_dump(), "models": models or []})
    return small_result(**{"workload": work, "manifest": manifest, **changes})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeRates:
    fake = FakeRates()
    monkeypatch.setattr(runners, "_run", fake)
    return fake


def swept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: dict[str, Any], **keys: Any
) -> tuple[list[str], str]:
    """The sentences of a sweep, and what it prints; it runs but once."""
    file = tmp_path / "s.yaml"
    whole = {"modes": ["static", "cdb"], "work": ["equal"], **base}
    file.write_text(json.dumps({"base": whole, "rounds": 3, **keys}))
    out = ["--out", str(tmp_path / "o")]
    main(["sweep", str(file), *out, "--json"])
    sentences = json.loads(capsys.readouterr().out)["sustained"]
    main(["sweep", str(file), *out])
    return sentences, capsys.readouterr().out


LINKED = [
    {"workload.arrivals": f"open-loop:{rate}", "workload.requests": 10 * rate}
    for rate in (1, 2, 4, 8)
]


def test_the_highest_sustained_rate_of_each_mode_is_said_below_the_table(
    machine: FakeRates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, printed = swept(tmp_path, capsys, {}, link=LINKED)
    assert found == [
        "static: keeps up with 2 requests/s, but not 4",
        "cdb: keeps up with 4 requests/s, but not 8",
    ]
    assert printed.index("verdict") < printed.index(found[0]) < printed.index(found[1])
    assert main(["sweep", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "p"), "--dry-run"]) == 0
    assert "requests/s" not in capsys.readouterr().out  # a plan tells nothing of rates


def test_requests_within_the_limits_are_asked_for_where_there_are_any(
    machine: FakeRates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.late = 3  # 85 % are within
    found, _ = swept(tmp_path, capsys, {"slo": {"tpot_s": 1.0}}, link=LINKED)
    assert found[1] == "cdb: not shown to keep up with even 1 requests/s"


def test_a_rate_that_is_invalid_in_one_round_ends_the_search(
    machine: FakeRates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.bad = {("open-loop:2", 3)}
    found, _ = swept(tmp_path, capsys, {}, link=LINKED)
    assert found[1] == "cdb: keeps up with 1 requests/s, but not 8, 2 was not judged"


def test_settings_are_told_apart_by_all_but_their_pace(
    machine: FakeRates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"workload.arrivals": ["open-loop:1", "ramp:1-7"], "engine.max_residents": [8, 16]}
    found, _ = swept(tmp_path, capsys, {}, grid=grid)
    assert found[:2] == [
        "static, engine.max_residents=8: keeps up with 1 requests/s, but not 4",
        "static, engine.max_residents=16: keeps up with 1 requests/s, but not 4",
    ]
    assert found[2] == "cdb, engine.max_residents=8: keeps up with 4 requests/s or more"
    whole = sweep_of(grid={"workload": [{"arrivals": "open-loop:1"}, {"arrivals": "open-loop:2"}]})
    assert len({setting_of(cell.config) for cell in whole.cells}) == 1


def test_a_sweep_over_something_else_says_nothing_of_rates(
    machine: FakeRates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"workload": {"arrivals": "open-loop:1"}}
    found, printed = swept(tmp_path, capsys, base, grid={"engine.max_residents": [8, 16]})
    assert found == []
    assert "keeps up" not in printed


# Cells that should have been alike.


def configs(**grid: Any) -> list[RunConfig]:
    return [cell.config for cell in sweep_of(grid=grid).cells]


def identity(digest: str, name: str = "m") -> ModelIdentity:
    return ModelIdentity(name=name, files={"config.json": "c", "model.safetensors": digest})


def test_a_model_whose_files_changed_between_cells_is_named() -> None:
    one, other = result_of([identity("1"), identity("7", "dense")]), result_of([identity("2")])
    sizes = configs(**{"engine.max_residents": [8, 16]})
    assert other_models(sizes, [one, one]) == []
    assert other_models(sizes, [one, other]) == [
        "m had other files in some cells: do not compare them"
    ]
    # Where the sweep varies the model, its files may differ.
    assert other_models(configs(model=["demo-ouro", "demo-huginn"]), [one, other]) == []
    assert other_models(configs(weights=["checkpoint", "random:0"]), [one, other]) == []
    both = configs(**{"model": ["demo-ouro", "demo-huginn"], "engine.max_residents": [8, 16]})
    assert len(other_models(both, [one, other, other, other])) == 1  # one of them did change


@pytest.mark.parametrize(
    ("grid", "alike"),
    [
        ({"engine.max_residents": [8, 16]}, True),
        ({"modes": [["cdb"], ["static"]]}, True),
        ({"kv.budget_fraction": [0.5, 0.8]}, True),
        ({"workload.requests": [8, 16]}, False),
        ({"exit.max_loops": [3, 4]}, False),
        ({"model": ["demo-ouro", "demo-huginn"]}, False),
        ({"sampling.seed": [0, 1]}, False),
        ({"kv.layout": ["shared", "per-loop"]}, False),
    ],
)
def test_other_work_is_said_where_the_same_was_asked(
    grid: dict[str, list[Any]], alike: bool
) -> None:
    cells = configs(**grid)
    assert len(cells) == 2
    assert other_workloads(cells, [result_of(), result_of()]) == []
    notes = other_workloads(cells, [result_of(workload="x"), result_of(workload="y")])
    assert bool(notes) == alike
    if alike:
        assert "timed on 2 workloads" in notes[0]


def test_the_notes_stand_in_the_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def run(config: RunConfig, directory: Path) -> bool:
        made.append(str(len(made)))
        directory.mkdir(parents=True)
        write_result(directory, result_of([identity(made[-1])], workload=made[-1]))
        return True

    monkeypatch.setattr(runners, "_run", run)
    _, printed = swept(tmp_path, capsys, {}, grid={"engine.max_residents": [8, 16]})
    text = " ".join(printed.split())
    assert "m had other files in some cells" in text
    assert "timed on 6 workloads" in text
