"""`cdbench baseline`: what a run may be a baseline of, and what is never written over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdbench.cli.main import main
from cdbench.compare.baselines import read_exact, read_timed
from cdbench.compare.fingerprint import fingerprint
from cdbench.compare.promotion import NAME, moved_counts, promotion, write_promotion
from cdbench.compare.stored import stored_baselines
from cdbench.errors import InvalidRunError, OutputError, UsageError
from cdbench.schema import IntervalRecord, Result, Validity
from cdbench.stats.blocks import mean
from tests.comparing import MANIFEST, side, timed_result, walls, written

RUN = timed_result(walls(static=2.0, cdb=1.0))
MACHINE = fingerprint(MANIFEST)
BUSY = Validity(verdict="INVALID", reasons=["busy"], timing=["busy"])
BROKEN = Validity(verdict="INVALID", reasons=["unequal work", "busy"], timing=["busy"])
OWN_DEPTHS = {"workload": RUN.workload.model_copy(update={"replayed": []})}
TOO_FEW = ["5 blocks were timed; an interval needs 6"]
FIVE_BLOCKS = timed_result(
    {mode: each[:5] for mode, each in walls(static=2.0, cdb=1.0).items()},
    validity=Validity(verdict="INVALID", reasons=TOO_FEW, timing=TOO_FEW),
)


def changed(**changes: Any) -> Result:
    return RUN.model_copy(update=changes)


def promote(run: Path, directory: Path, *flags: str, name: str = "g") -> int:
    return main(["baseline", "promote", str(run), "--name", name, "--dir", str(directory), *flags])


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    """Where baselines go; nothing is there yet."""
    return tmp_path / "baselines"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", RUN)


def test_a_run_that_qualifies_for_both_gives_both(
    run: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert promote(run, baselines) == 0
    assert names_in(baselines) == [f"g.{MACHINE}.json", "g.json"]
    exact, timed = read_exact(baselines, "g"), read_timed(baselines, "g", side(RUN))
    assert exact is not None
    assert exact.modes["cdb"].exact == {"token_loops": 2500.0}
    assert (exact.run, exact.workload) == ("run", RUN.workload.hash)
    assert timed is not None
    assert timed.result.blocks == RUN.blocks
    said = capsys.readouterr().out.replace("\n", " ")
    assert "Exact baseline written to" in said
    assert "Timed baseline written to" in said
    assert "No " not in said


@pytest.mark.parametrize(("flag", "kept"), [("--exact-only", "g.json"), ("--timed-only", MACHINE)])
def test_one_kind_alone(flag: str, kept: str, run: Path, baselines: Path) -> None:
    assert promote(run, baselines, flag) == 0
    (name,) = names_in(baselines)
    assert kept in name


@pytest.mark.parametrize(
    ("result", "written_kinds", "refused"),
    [
        (RUN.model_copy(update={"validity": BUSY}), {"exact"}, {"timed": "INVALID (busy)"}),
        (FIVE_BLOCKS, {"exact"}, {"timed": "5 blocks"}),
        (RUN.model_copy(update=OWN_DEPTHS), {"timed"}, {"exact": "tokens and depths are its own"}),
    ],
)
def test_what_a_run_does_not_qualify_for_is_said(
    result: Result,
    written_kinds: set[str],
    refused: dict[str, str],
    tmp_path: Path,
    baselines: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = written(tmp_path / "source", result)
    assert promote(source, baselines, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["written"]) == written_kinds
    assert set(document["refused"]) == set(refused)
    for kind, why in refused.items():
        assert why in document["refused"][kind]
    assert promote(source, baselines) == 0
    assert f"No {next(iter(refused))} baseline: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "flags", "code", "says"),
    [
        ({"validity": BROKEN}, (), 3, "INVALID (unequal work)"),
        ({"validity": BUSY}, ("--timed-only",), 3, "INVALID (busy)"),
        (OWN_DEPTHS, ("--exact-only",), 2, "replay a recording"),
        ({"blocks": []}, (), 2, "nothing was timed"),
        ({"blocks": RUN.blocks[:3]}, (), 2, "no count in it repeats"),
    ],
)
def test_a_run_that_qualifies_for_nothing_is_refused_in_one_line(
    changes: dict[str, Any],
    flags: tuple[str, ...],
    code: int,
    says: str,
    baselines: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds: tuple[Any, ...] = {"--timed-only": ("timed",), "--exact-only": ("exact",)}.get(
        flags[0] if flags else "", ("exact", "timed")
    )
    error = InvalidRunError if code == 3 else UsageError
    with pytest.raises(error) as refused:
        promotion(side(changed(**changes)), "g", kinds, "now")
    assert says in str(refused.value)
    assert refused.value.exit_code == code
    assert "\n" not in str(refused.value)
    assert names_in(baselines) == []


def test_the_command_ends_with_the_code_of_the_refusal(
    tmp_path: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = written(tmp_path / "broken", changed(validity=BROKEN))
    assert promote(broken, baselines) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no baseline: exact: " in err
    assert not baselines.exists()
    assert promote(tmp_path / "missing", baselines) == 2
    assert promote(broken, baselines, "--exact-only", "--timed-only") == 2
    assert not baselines.exists()


@pytest.mark.parametrize("name", ["../g", "", "a/b", ".hidden", "a b", "g\n"])
def test_a_name_that_no_gate_can_have_is_refused(name: str, run: Path, baselines: Path) -> None:
    assert NAME.fullmatch(name) is None
    assert promote(run, baselines, name=name) == 2
    assert not baselines.exists()


def test_replacing_says_which_counts_moved(
    run: Path, tmp_path: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert promote(run, baselines) == 0
    capsys.readouterr()
    assert promote(run, baselines) == 0
    assert "exact: every count is what it was" in capsys.readouterr().out
    more = timed_result(walls(static=2.0, cdb=1.3, lockstep=1.5), {"token_loops": 2501.0})
    assert promote(written(tmp_path / "more", more), baselines, "--json") == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    assert "exact: token_loops of cdb: 2,500 before, 2,501 now" in changes
    assert "exact: mode lockstep is new" in changes
    assert any(line.startswith("timed: replaces the run of 2026-01-01") for line in changes)
    assert any(line.startswith("timed: Slower: cdb ") for line in changes)
    exact = read_exact(baselines, "g")
    assert exact is not None
    assert exact.modes["cdb"].exact["token_loops"] == 2501


def test_a_count_that_varied_is_left_out_and_it_is_said(
    tmp_path: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [
        run.model_copy(update={"metrics": {**run.metrics, "refills": float(run.index)}})
        for run in RUN.blocks
    ]
    found = mean([float(index) for index in range(6)])
    assert found is not None
    varied = {"refills": IntervalRecord.of(found)}
    modes = {
        label: mode.model_copy(
            update={
                "metrics": {**mode.metrics, "refills": 2.5},
                "intervals": {**mode.intervals, **varied},
            }
        )
        for label, mode in RUN.modes.items()
    }
    source = written(tmp_path / "source", changed(blocks=blocks, modes=modes))
    assert promote(source, baselines, "--exact-only") == 0
    assert "refills of cdb varied between blocks" in capsys.readouterr().out
    exact = read_exact(baselines, "g")
    assert exact is not None
    assert set(exact.modes["cdb"].exact) == {"token_loops"}


def test_moved_counts_are_turned_by_swapping() -> None:
    one = promotion(side(RUN), "g", ("exact",), "now").exact
    two = promotion(
        side(timed_result(walls(static=2.0), {"token_loops": 1.0})), "g", ("exact",), "now"
    ).exact
    assert one is not None
    assert two is not None
    assert list(moved_counts(one, one)) == []
    assert list(moved_counts(one, two)) == [
        "token_loops of static: 2,500 before, 1 now",
        "mode cdb is gone",
    ]
    assert len(list(moved_counts(two, one))) == 2


@pytest.mark.parametrize("content", ["{}", "not json", '{"name": "package"}', ""])
def test_what_is_no_baseline_is_never_written_over(
    content: str, run: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines.mkdir()
    foreign = baselines / "g.json"
    foreign.write_text(content)
    assert promote(run, baselines) == 2
    assert "no exact baseline; move it away" in capsys.readouterr().err
    assert foreign.read_text() == content
    assert names_in(baselines) == ["g.json"]


def test_a_baseline_that_can_no_longer_be_read_is_replaced_and_it_is_said(
    run: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines.mkdir()
    (baselines / "g.json").write_text('{"kind": "exact-baseline", "modes": 3}')
    assert promote(run, baselines, "--exact-only") == 0
    assert "could not be read, and is replaced" in capsys.readouterr().out
    assert read_exact(baselines, "g") is not None


def test_a_full_disk_leaves_what_was_there(
    baselines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promoted = promotion(side(RUN), "g", ("exact",), "now")
    write_promotion(promoted, baselines)
    before = (baselines / "g.json").read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_promotion(promoted, baselines)
    assert (baselines / "g.json").read_text() == before
    assert names_in(baselines) == ["g.json"]


def test_a_place_that_cannot_be_written_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert promote(run, file) == 2
    assert "--dir" in capsys.readouterr().err


def test_a_timed_baseline_names_no_place_of_the_machine(run: Path, baselines: Path) -> None:
    result = changed(config={**RUN.config, "out": "/somewhere/of/mine"})
    write_promotion(promotion(side(result), "g", ("exact", "timed"), "now"), baselines)
    for path in baselines.iterdir():
        assert "/somewhere" not in path.read_text()


def test_list_and_show(run: Path, baselines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "list", "--dir", str(baselines)]) == 0
    assert "no baseline; make one with" in capsys.readouterr().out
    assert promote(run, baselines) == 0
    assert promote(run, baselines, "--exact-only", name="other.one") == 0
    capsys.readouterr()
    assert main(["baseline", "list", "--dir", str(baselines), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = {(b["name"], b["kind"]): b for b in document["baselines"]}
    assert set(found) == {("g", "exact"), ("g", "timed"), ("other.one", "exact")}
    assert (found["g", "exact"]["counts"], found["g", "exact"]["machine"]) == (2, None)
    assert (found["g", "timed"]["blocks"], found["g", "timed"]["machine"]) == (6, MACHINE)
    assert document["problems"] == []
    assert main(["baseline", "list", "--dir", str(baselines)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == 4
    assert any(MACHINE in line and "6 blocks" in line for line in listed)
    assert main(["baseline", "show", "g", "--dir", str(baselines)]) == 0
    shown = capsys.readouterr().out
    assert "token_loops" in shown
    assert "2,500" in shown
    assert main(["baseline", "show", "g", "--dir", str(baselines), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "exact-baseline"
    assert main(["baseline", "show", "none", "--dir", str(baselines)]) == 2


def test_files_that_are_no_baselines_are_named_and_the_others_listed(
    run: Path, baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert promote(run, baselines) == 0
    (baselines / "notes.json").write_text("[]")
    whole = (baselines / "g.json").read_text()
    (baselines / "renamed.json").write_text(whole)
    timed = (baselines / f"g.{MACHINE}.json").read_text()
    (baselines / "g.elsewhere.json").write_text(timed)
    doctored = json.loads(timed)
    doctored["blocks"][0]["wall_s"] *= 2
    (baselines / f"h.{MACHINE}.json").write_text(json.dumps(doctored))
    capsys.readouterr()
    assert main(["baseline", "list", "--dir", str(baselines)]) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    for said in ("notes.json", "renamed.json", "elsewhere", "h."):
        assert said in printed.err
    assert len(stored_baselines(baselines).problems) == 4
