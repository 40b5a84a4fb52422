"""Raw records: exact, whole after a crash, and enough to make every summary again without torch."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench.compared import compare
from cdbench.bench.derived import EqualWork, equal_sections, exits_of
from cdbench.bench.directory import RunDirectory
from cdbench.bench.equal import RecordedRequest, TimedRun, TimedSubject
from cdbench.bench.equal_check import unequal_work
from cdbench.bench.figures import mode_figures
from cdbench.bench.raw import ContradictionError, read_raw, read_run
from cdbench.bench.rederive import check, differences, rederive
from cdbench.bench.validity import RunFacts, TimedFacts, judge
from cdbench.cli.main import main
from cdbench.errors import OutputError, UsageError
from cdbench.machine.summary import summarise as summarise_machine
from cdbench.metrics.registry import evaluate
from cdbench.metrics.trace import Arrivals, LaunchTrace, RunTrace
from cdbench.metrics.work import ModelWork
from cdbench.resources import task_path
from cdbench.runtime.core import LaunchRecord, Stage
from cdbench.schema import (
    ExitSettings,
    ModeResult,
    RepeatRecord,
    RequestRecord,
    Result,
    Validity,
    Workload,
    append_lines,
    read_repeats,
    read_requests,
    read_result,
    to_json,
)
from cdbench.schema.environment import CpuEnvironment, RepeatEnvironment
from cdbench.schema.files import write_whole
from cdbench.schema.launches import (
    StoredLaunch,
    member_name,
    merge_launches,
    pack,
    read_launches,
    unpack,
    write_launches,
)
from cdbench.schema.repeats import ModeFacts
from cdbench.schema.stages import StageCurves, StagePassRecord
from cdbench.workloads.arrival_times import ArrivalSchedule
from cdbench.workloads.arrivals import parse_arrivals
from cdbench.workloads.identity import workload_hash
from tests.recorded import (
    FACTS,
    LOOPS,
    ScriptedRun,
    scripted_blocks,
    scripted_passes,
    scripted_run,
    scripted_stages,
    scripted_workload,
)
from tests.test_schema import MANIFEST

MODES = ("static", "cdb")
WORKLOAD = scripted_workload()
WORKLOAD_RESULTS = scripted_run("cdb").results


def scripted_verdict(runs: Sequence[ScriptedRun]) -> Validity:
    """Nothing is wrong with these runs but that there may be too few."""
    blocks = len({run.block for run in runs})
    return judge(RunFacts(timed=TimedFacts(blocks=blocks, requests=len(WORKLOAD))))


def scripted_result(
    runs: Sequence[ScriptedRun],
    stages: StageCurves | None = None,
    passes: Sequence[StagePassRecord] = (),
) -> Result:
    """What the summary of these runs says."""
    work = EqualWork.of(runs, FACTS, WORKLOAD, 512, stages, passes=passes)
    return Result(
        status="complete",
        validity=scripted_verdict(runs),
        manifest=MANIFEST,
        config={"engine": {"prefill_tokens": 512}},
        workload=Workload(
            hash=workload_hash(WORKLOAD, ArrivalSchedule(parse_arrivals("closed-loop:2"))),
            source="demo",
            requests=len(WORKLOAD),
            prompt_tokens=sum(len(r.prompt) for r in WORKLOAD),
            output_tokens=sum(len(r.tokens) for r in WORKLOAD),
            arrivals="closed-loop:2",
        ),
        modes={
            label: ModeResult(
                schedule="static" if label == "static" else "cdb",
                model="none",
                exit=ExitSettings(rule="none"),
                max_loops=LOOPS,
                **vars(mode_figures(label, work.runs, {}, LOOPS)),
            )
            for label in MODES
        },
        **vars(equal_sections(work)),
        exits=exits_of({}, work.runs, dict.fromkeys(MODES, LOOPS)),
        files={"requests": "requests.jsonl"}
        | ({"stages": "stages.jsonl"} if stages is not None else {}),
        stages=stages.model_dump(mode="json") if stages is not None else None,
    )


def written(
    path: Path,
    blocks: int = 6,
    *,
    finished: bool = True,
    stages: StageCurves | None = None,
    passes: Sequence[StagePassRecord] | None = None,
    environment: RepeatEnvironment | None = None,
) -> Path:
    """A run directory with scripted runs; ``passes`` are those of ``stages`` (default: three)."""
    passes = passes or scripted_passes()
    runs = scripted_blocks(MODES, blocks)
    directory = RunDirectory.create(str(path), "scripted")
    directory.keep_workload(WORKLOAD)
    for run in runs:
        seen = environment.model_dump(mode="json") if environment is not None else None
        directory.keep_repeat(run, FACTS[run.trace.mode], seen)
    for passed in passes if stages is not None else ():
        directory.keep_stage_pass(passed)
    if finished:
        result = scripted_result(runs, stages, passes)
        if environment is not None:
            seen_all = summarise_machine([environment] * len(runs), compute_threads=1)
            result = result.model_copy(update={"environment": seen_all})
        directory.finish(result)
    directory.close()
    return path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of the demo, questions and timing: one block, so INVALID, but whole."""
    folder = tmp_path_factory.mktemp("runs")
    task, out = folder / "short.yaml", folder / "real"
    shipped = task_path("demo_copy")
    (folder / shipped.name).write_bytes(shipped.read_bytes())
    # Answers are cut after six tokens: what they say is not looked at here.
    text = shipped.with_suffix(".yaml").read_text(encoding="utf-8")
    task.write_text(text.replace("max_gen_toks: 80", "max_gen_toks: 6"), encoding="utf-8")
    code = main(
        [
            *("run", "--tasks", str(task), "--limit", "2", "--requests", "1", "--blocks", "1"),
            *("--modes", "static,static@auto,cdb", "--set", "engine.max_residents=2"),
            *("--out", str(out), "--json"),
        ]
    )
    assert code == 3
    return out


# A run's summaries again, from its files.


def test_a_run_is_rederived_from_its_directory(real: Path) -> None:
    result, raw = read_run(real)
    assert check(real) == []
    again = rederive(result, raw)
    assert to_json(again) == to_json(result)
    assert len(raw.repeats) == len(result.blocks) > 0
    assert set(raw.passes) == {"static", "static@auto", "cdb"}
    assert set(result.files) == {"requests", "repeats", "workload", "launches", "stages"}
    assert all((real / name).is_file() for name in result.files.values())
    assert not list(real.glob("**/*.partial"))


def test_intervals_percentiles_and_speedups_are_rederived_exactly(tmp_path: Path) -> None:
    result, raw = read_run(written(tmp_path / "a", stages=scripted_stages()))
    assert to_json(rederive(result, raw)) == to_json(result)
    assert result.waterfall is not None
    assert result.waterfall["cdb"].rows
    assert result.bounds["cdb"]["time_bound"].realised is not None
    assert result.modes["cdb"].metrics["floor_ms_per_loop"] is not None
    assert result.modes["cdb"].intervals["output_throughput"].low is not None
    assert {c.mode: c.speedup.low is None for c in result.comparisons} == dict.fromkeys(
        MODES, False
    )


def test_rederiving_needs_neither_torch_nor_the_model(tmp_path: Path) -> None:
    program = (
        "import importlib.abc, sys\n"
        "class Absent(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'safetensors'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from cdbench.cli.main import main\n"
        f"raise SystemExit(main(['recheck', {str(written(tmp_path / 'a', blocks=1))!r}]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "is what the raw records give" in done.stdout


def edit_line(name: str, change: Callable[[dict[str, Any]], Any], line: int = 0) -> Any:
    def edit(directory: Path) -> None:
        path = directory / name
        lines = path.read_text(encoding="utf-8").split("\n")
        record = json.loads(lines[line])
        change(record)
        lines[line] = json.dumps(record)
        path.write_text("\n".join(lines), encoding="utf-8")

    return edit


def drop_line(name: str, line: int = 0) -> Any:
    def edit(directory: Path) -> None:
        path = directory / name
        lines = path.read_text(encoding="utf-8").split("\n")
        del lines[line]
        path.write_text("\n".join(lines), encoding="utf-8")

    return edit


def slower_launch(directory: Path) -> None:
    with np.load(directory / "launches.npz") as stored:
        columns = {name: stored[name] for name in stored.files}
    columns["b0-o0-static/duration_s"] = columns["b0-o0-static/duration_s"] * 0.5
    np.savez(directory / "launches.npz", **columns)


def edit_result(change: Callable[[dict[str, Any]], Any]) -> Any:
    def edit(directory: Path) -> None:
        path = directory / "result.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return edit


def faster(document: dict[str, Any]) -> None:
    document["comparisons"][0]["speedup"]["estimate"] *= 1.001


def other_token(record: dict[str, Any]) -> None:
    record["tokens"][-1] += 1


def acquitted(document: dict[str, Any]) -> None:
    document["validity"] |= {"verdict": "VALID", "reasons": []}


def shallower(record: dict[str, Any]) -> None:
    depths = record["executed_depths"]
    depths[-1] = depths[-1] % LOOPS + 1


def less_asked(record: dict[str, Any]) -> None:
    record["requested_depths"] = [1] * len(record["tokens"])


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (edit_line("requests.jsonl", shallower), "mean_depth"),
        (edit_line("requests.jsonl", shallower), "token_loops"),
        (edit_line("requests.jsonl", lambda r: r["tokens"].append(1)), "executed_depths has"),
        (edit_line("requests.jsonl", lambda r: r.update(finish_s=9e3)), "e2e"),
        (drop_line("requests.jsonl"), "2 request lines instead of 3"),
        (edit_line("repeats.jsonl", lambda r: r.update(wall_s=8.0)), "output_throughput"),
        (edit_line("repeats.jsonl", lambda r: r.update(mode="lockstep")), "instead of 3"),
        (edit_line("repeats.jsonl", lambda r: r.update(order=1)), "place 1: is there twice"),
        (drop_line("repeats.jsonl"), "blocks: result.json has 8 entries"),
        (edit_line("workload.jsonl", lambda r: r["prompt"].append(1)), "workload.prompt_tokens"),
        (edit_line("workload.jsonl", shallower), "workload.hash"),
        (edit_line("workload.jsonl", less_asked), "bounds.cdb.work_bound.value"),
        (slower_launch, "ms_per_loop"),
        (edit_result(faster), "comparisons[0].speedup.estimate"),
        (edit_result(lambda d: d["modes"].pop("cdb")), "cdb was measured"),
        (
            edit_line("requests.jsonl", other_token),
            "lacks 'mode static: output tokens differ from the recorded ones'",
        ),
        (edit_line("requests.jsonl", lambda r: r.update(error="x")), "1 requests failed (x)"),
        (edit_line("requests.jsonl", lambda r: r.update(id="x")), "not in the workload"),
        (
            edit_line("workload.jsonl", shallower),
            "lacks 'mode cdb: executed depths differ from the recorded ones (in 4 repeats)'",
        ),
        (edit_result(acquitted), "lacks '2 blocks were timed; an interval needs 6'"),
        (edit_result(lambda d: d["validity"].update(verdict="VALID")), "VALID with 1 reason"),
    ],
)
def test_a_changed_file_is_caught(tamper: Any, words: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=2)
    tamper(directory)
    found = check(directory)
    assert any(words in line for line in found), found[:3]


def test_tokens_of_another_vocabulary_and_depths_of_a_dense_model_are_their_own() -> None:
    run = scripted_run("cdb")
    changed = [
        replace(r, tokens=[t + 1 for t in r.tokens], executed_depths=[LOOPS] * len(r.tokens))
        for r in run.results
    ]
    other = replace(run, trace=replace(run.trace, requests=changed))
    tokens, depths = (
        f"mode cdb: {what} differ from the recorded ones (in 2 repeats)"
        for what in ("output tokens", "executed depths")
    )
    assert unequal_work([run, run], WORKLOAD, {"cdb"}) == []
    assert unequal_work([other, other], WORKLOAD, {"cdb"}) == [tokens, depths]
    assert unequal_work([other, other], WORKLOAD, ()) == [tokens]
    assert unequal_work([other, other], WORKLOAD, (), {"cdb"}) == []
    fewer = replace(run, trace=replace(run.trace, requests=run.results[:2]))
    found = unequal_work([fewer], WORKLOAD, (), {"cdb"})
    assert len(found) == 1
    assert "output tokens instead of" in found[0]


def dearer(record: dict[str, Any]) -> None:
    record["points"][0]["mean_s"] *= 1.5


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (edit_line("stages.jsonl", dearer), "stages.points[0].time_s"),
        (edit_line("stages.jsonl", dearer, 2), "stages.points[0].high_s"),
        (edit_line("stages.jsonl", lambda r: r["points"].pop()), "stages.points[27].passes"),
        (edit_line("stages.jsonl", lambda r: r["points"][0].update(launches=9)), "0].launches"),
        (drop_line("stages.jsonl", 1), "stages.passes"),
        (edit_result(lambda d: d["stages"]["points"][3].update(low_s=1e-6)), "points[3].low_s"),
        (edit_result(lambda d: d["stages"]["points"].pop()), "stage curves of result.json"),
        (edit_result(lambda d: d.update(stages=None)), "3 passes, but result.json has no curves"),
        (lambda path: (path / "stages.jsonl").write_text(""), "stages.jsonl has no pass"),
    ],
)
def test_changed_stage_curves_or_passes_are_caught(tamper: Any, words: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", stages=scripted_stages())
    assert check(directory) == []
    tamper(directory)
    found = check(directory)
    assert any(words in line for line in found), found[:3]


def test_what_other_passes_would_move_is_made_again_from_the_passes(tmp_path: Path) -> None:
    passes = scripted_passes(6)
    directory = written(tmp_path / "a", stages=scripted_stages(passes), passes=passes)
    result = read_result(directory / "result.json")
    assert result.waterfall is not None
    spread = {row.effect: row.over_passes for row in result.waterfall["cdb"].rows}["exit_rule"]
    assert spread is not None
    assert spread.n == 6
    # All points of a scripted pass are fast or slow together, which ratios leave as they are.
    assert [spread.low, spread.high] == pytest.approx([spread.estimate] * 2)
    assert check(directory) == []
    edit_line("stages.jsonl", dearer)(directory)
    found = check(directory)
    assert any("over_passes.high" in line for line in found), found[:3]


def test_stage_curves_from_a_file_have_no_passes(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", stages=scripted_stages())
    (directory / "stages.jsonl").unlink()
    edit_result(lambda d: (d["files"].pop("stages"), d["config"].update(stages="s.json")))(
        directory
    )
    assert check(directory) == []
    edit_result(lambda d: d["config"].update(stages="measure"))(directory)
    assert check(directory) == ["stages: measured in the run, but stages.jsonl has no pass"]


QUIET = RepeatEnvironment(
    wall_s=1.0, cpu=CpuEnvironment(usable_cores=1, own_cpu_s=1.0, foreign_cpu_s=0.0)
)


def busy(record: dict[str, Any]) -> None:
    record["environment"]["cpu"] |= {"own_cpu_s": 0.5, "foreign_cpu_s": 0.5}


def calmer(document: dict[str, Any]) -> None:
    document["environment"]["figures"]["foreign_cores"]["high"] = -0.5


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (edit_result(calmer), "environment.figures.foreign_cores.high"),
        (edit_result(lambda d: d.update(environment=None)), "environment: result.json has nothing"),
        (edit_line("repeats.jsonl", busy), "environment.figures.foreign_cores.high"),
        (edit_line("repeats.jsonl", lambda r: r["environment"].pop("wall_s")), "wall_s: Field"),
    ],
)
def test_a_changed_machine_is_caught(tamper: Any, words: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=2, environment=QUIET)
    assert check(directory) == []
    tamper(directory)
    found = check(directory)
    assert any(words in line for line in found), found[:3]


def test_a_disturbed_machine_must_be_among_the_reasons(tmp_path: Path) -> None:
    cpu = CpuEnvironment(usable_cores=1, own_cpu_s=0.5, foreign_cpu_s=0.5)
    directory = written(tmp_path / "a", environment=RepeatEnvironment(wall_s=1.0, cpu=cpu))
    (found,) = check(directory)
    assert found.startswith("validity.reasons: result.json lacks")
    assert "other processes took" in found


def test_looks_are_made_again_and_give_the_level_of_every_interval(tmp_path: Path) -> None:
    directory = written(tmp_path / "a")
    edit_result(lambda d: d["config"].update(repeats={"blocks": 6, "interval": 0.05}))(directory)
    result, raw = read_run(directory)
    again = rederive(result, raw)
    assert again.looks is not None
    assert (again.looks.ended_after, again.looks.after_blocks) == (6, [6, 12, 24])
    assert again.looks.level > 0.99
    (speedup,) = [c.speedup for c in again.comparisons if (c.mode, c.scope) == ("cdb", "e2e")]
    assert speedup == again.looks.speedup
    # A result that says nothing of its looks has intervals of another level, and both are seen.
    found = check(directory)
    assert any(line.startswith("looks: result.json has nothing") for line in found)
    assert any(".speedup.low" in line for line in found)
    RunDirectory(directory).finish(again)
    assert check(directory) == []
    edit_result(lambda d: d["looks"].update(level=0.95))(directory)
    assert [line.partition(":")[0] for line in check(directory)] == ["looks.level"]


FILES = (
    "requests.jsonl",
    "repeats.jsonl",
    "workload.jsonl",
    "result.json",
    "launches.npz",
    "stages.jsonl",
)


def test_what_belongs_to_a_run_is_what_a_run_writes(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=1, stages=scripted_stages())
    assert {path.name for path in directory.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_a_usage_error_that_names_it(name: str, tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=1, stages=scripted_stages())
    (directory / name).unlink()
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        check(directory)
    (directory / name).mkdir()
    with pytest.raises(UsageError, match=name.replace(".", r"\.")):
        check(directory)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b'{"a": 1}\n', b"[]\n", b"PK\x03\x04\xff\xfe\x00"])
def test_a_foreign_file_is_a_usage_error_that_names_it(
    content: bytes, name: str, tmp_path: Path
) -> None:
    directory = written(tmp_path / "a", blocks=1, stages=scripted_stages())
    (directory / name).write_bytes(content)
    with pytest.raises(UsageError, match=name.replace(".", r"\.")) as refused:
        check(directory)
    assert "pickle" not in str(refused.value)


def found_or_refused(directory: Path, name: str) -> list[str]:
    """What a check finds; one line where it refuses the file of this name."""
    try:
        return check(directory)
    except UsageError as refused:
        return [str(refused)] if name in str(refused) else []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0, 0.5])
def test_a_file_that_was_cut_short_is_refused_or_a_difference(
    share: float, name: str, tmp_path: Path
) -> None:
    directory = written(tmp_path / "a", blocks=2, stages=scripted_stages())
    whole = (directory / name).read_bytes()
    (directory / name).write_bytes(whole[: int(len(whole) * share)])
    assert found_or_refused(directory, name)


def test_an_unreadable_member_is_a_usage_error(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=1)
    whole = (directory / "launches.npz").read_bytes()
    (directory / "launches.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="raw records are incomplete"):
        check(directory)


@pytest.mark.parametrize("value", [-1, 0, 10**9, 10**30])
@pytest.mark.parametrize(
    "place",
    [
        ("repeats.jsonl", ("max_loops",)),
        ("repeats.jsonl", ("width",)),
        ("repeats.jsonl", ("facts", "work", "core")),
        ("workload.jsonl", ("requested_depths", 1)),
        ("workload.jsonl", ("executed_depths", 1)),
        ("requests.jsonl", ("executed_depths", 1)),
        ("result.json", ("modes", "static", "max_loops")),
    ],
)
def test_what_no_run_can_have_is_a_contradiction_or_refused(
    place: tuple[str, tuple[Any, ...]], value: int, tmp_path: Path
) -> None:
    name, keys = place

    def change(record: Any) -> None:
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    directory = written(tmp_path / "a", blocks=2)
    (edit_result(change) if name == "result.json" else edit_line(name, change))(directory)
    assert found_or_refused(directory, name)


def test_values_that_cannot_be_summarised_are_one_difference(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=2)
    edit_line("repeats.jsonl", lambda r: r.update(wall_s=1e308))(directory)
    (found,) = check(directory)
    assert found.startswith("raw records: they cannot be summarised (")
    assert "\n" not in found


def test_workload_depths_go_with_their_tokens(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=2)
    edit_line("workload.jsonl", lambda r: r.update(requested_depths=[]))(directory)
    (found,) = check(directory)
    assert "workload.jsonl: request" in found
    (directory / "workload.jsonl").write_text("")
    (found,) = check(directory)
    assert "workload.jsonl has no whole line, but 8 runs were timed" in found


def test_differences_take_null_for_absent_and_forgive_last_digits() -> None:
    said = {"a": 1.0, "b": None, "c": [1, 2], "d": {"e": True}}
    assert list(differences(said, {"a": 1.0 + 1e-12, "c": [1, 2], "d": {"e": True}}, "x")) == []
    made = {"a": 1.1, "b": 0.0, "c": [1], "d": {"e": 1}}
    found = list(differences(said, made, "x"))
    assert [line.partition(":")[0] for line in found] == ["x.a", "x.b", "x.c"]


# The command.


def test_recheck_says_so_and_how_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = written(tmp_path / "a", blocks=2)
    assert main(["recheck", str(directory)]) == 0
    assert main(["recheck", str(directory / "result.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.partition("\n")[2])["same"] is True
    edit_line("requests.jsonl", shallower)(directory)
    assert main(["recheck", str(directory)]) == 3
    assert "modes.static.metrics.mean_depth: result.json has 4" in capsys.readouterr().out
    assert main(["recheck", str(directory), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["differences"] == check(directory)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing"], "missing"),
        (["old"], "nothing can be made again"),
        (["a", "--blocks", "x"], "--blocks 'x'"),
        (["a", "--trace", "t.json", "--blocks", "7"], "none of them was timed"),
        (["a", "--blocks", "1"], "--blocks 1: no trace is drawn"),
        (["a", "--trace", "old"], "exists; name a new file"),
        (["a", "--trace", "x" * 300], "cannot be written (File name too long)"),
        (["a", "--trace", "old/result.json/t.json"], "cannot be written (Not a directory)"),
        (["x" * 300], "File name too long"),
        (["~nobody-here/a"], "no home directory"),
        (["a", "--trace", "none/t.json"], "cannot be written"),
    ],
)
def test_bad_input_to_recheck_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "a", blocks=1)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_bytes((tmp_path / "a" / "result.json").read_bytes())
    assert main(["recheck", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")


def test_recheck_draws_a_trace_of_the_stored_launches(tmp_path: Path) -> None:
    directory = written(tmp_path / "a", blocks=2)
    assert main(["recheck", str(directory), "--trace", str(tmp_path / "t.json")]) == 0
    document = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    first = [run for run in read_raw(directory).repeats if run.block == 0]
    assert len(slices) == sum(len(run.trace.launches) for run in first)


# What is stored is exact.

FIELDS = tuple(name for name in vars(LaunchTrace) if not name.startswith("_"))
rows = st.integers(0, 2**20)
seconds = st.floats(0, 1e9, allow_nan=False)


@st.composite
def launch_records(draw: st.DrawFn) -> LaunchRecord:
    loops = draw(st.none() | st.lists(st.integers(1, 40), min_size=1, max_size=9))
    return LaunchRecord(
        draw(st.sampled_from(Stage)),
        draw(rows),
        draw(rows),
        None if loops is None else np.array(loops),
        draw(rows),
        draw(rows),
        draw(seconds),
        draw(seconds),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(launch_records(), max_size=12))
def test_launches_read_back_bit_for_bit(launches: list[LaunchRecord]) -> None:
    again = unpack(pack(launches))
    assert StoredLaunch._fields == FIELDS
    for stored, launch in zip(again, launches, strict=True):
        assert all(getattr(stored, name) == getattr(launch, name) for name in FIELDS)


def test_columns_that_do_not_belong_together_are_refused() -> None:
    columns = pack(scripted_run("cdb").trace.launches)
    for name in columns:
        with pytest.raises(ValueError, match="column"):
            unpack({key: value for key, value in columns.items() if key != name})
        if name != "stage_names":
            with pytest.raises(ValueError, match="column"):
                unpack(columns | {name: columns[name][:-1]})
    with pytest.raises(ValueError, match="not listed"):
        unpack(columns | {"stage_names": columns["stage_names"][:1]})


def test_counts_take_the_smallest_integers_that_hold_them() -> None:
    columns = pack(scripted_run("cdb").trace.launches)
    assert columns["depth_counts"].dtype == columns["decode_rows"].dtype == np.uint8
    assert columns["start_s"].dtype == np.float64


def test_members_are_found_before_and_after_the_merge(tmp_path: Path) -> None:
    kept = {
        member_name(run.block, run.order, run.trace.mode): run.trace.launches
        for run in scripted_blocks(MODES, 2)
    }
    for member, launches in kept.items():
        write_launches(tmp_path, member, launches)
    before = {member: read_launches(tmp_path, member) for member in kept}
    merged = merge_launches(tmp_path)
    assert merged is not None
    assert [path.name for path in tmp_path.iterdir()] == ["launches.npz"]
    assert {member: read_launches(tmp_path, member) for member in kept} == before
    assert merge_launches(tmp_path) is None
    with pytest.raises(UsageError, match="b9-o0-cdb"):
        read_launches(tmp_path, "b9-o0-cdb")


def test_a_member_name_holds_no_path_and_is_no_longer_than_a_name_may_be() -> None:
    assert len(member_name(0, 3, f"dense:/{'x' * 300}")) < 200
    assert member_name(0, 3, "dense:/home/me/a b") == "b0-o3-dense-home-me-a-b"
    assert member_name(1, 0, "static@auto") == "b1-o0-static@auto"


def test_a_trace_read_back_is_the_trace(tmp_path: Path) -> None:
    written(tmp_path / "a", blocks=1)
    for stored, run in zip(
        read_raw(tmp_path / "a").repeats, scripted_blocks(MODES, 1), strict=True
    ):
        assert (stored.block, stored.order) == (run.block, run.order)
        assert evaluate(stored.trace) == evaluate(run.trace)
        kept = {field.name for field in fields(RunTrace)} - {"requests", "launches", "costs"}
        for name in sorted(kept):
            assert getattr(stored.trace, name) == getattr(run.trace, name), name


def test_every_part_of_a_trace_is_kept_or_comes_from_the_stage_curves() -> None:
    of_curves = {"prefill_share", "floor_s"}
    elsewhere = {"requests", "launches"}
    kept = set(RepeatRecord.model_fields)
    parts = {field.name for field in fields(RunTrace)}
    assert parts - of_curves - elsewhere <= kept


def test_what_was_seen_of_machine_and_mode_is_kept(tmp_path: Path) -> None:
    directory = RunDirectory.create(str(tmp_path / "a"), "x")
    facts = ModeFacts(
        adaptive=True, dense=False, rule_computes=True, readout_every_loop=False, work={"core": 2}
    )
    directory.keep_repeat(scripted_run("cdb"), facts, environment={"load": 0.5})
    (line,) = read_repeats(tmp_path / "a" / "repeats.jsonl")
    assert isinstance(line, RepeatRecord)
    assert line.environment == {"load": 0.5}
    assert line.facts == facts


def test_a_real_run_keeps_the_facts_of_its_modes(real: Path) -> None:
    facts = {run.trace.mode: run.facts for run in read_raw(real).repeats}
    cdb, static = facts["cdb"], facts["static"]
    assert (cdb.adaptive, cdb.dense, cdb.rule_computes) == (True, False, True)
    assert (static.adaptive, static.rule_computes) == (False, False)
    assert ModelWork(**cdb.work) == ModelWork(**static.work)
    assert cdb.work["max_loops"] == LOOPS


def test_the_workload_is_kept_with_its_schedule(tmp_path: Path) -> None:
    for name, offsets in (("a", (0.0, 0.1 + 0.2, 1.0)), ("b", None)):
        directory = RunDirectory.create(str(tmp_path / name), "x")
        directory.keep_workload(WORKLOAD, offsets)
        directory.keep_repeat(scripted_run("cdb"), FACTS["cdb"])
        raw = read_raw(directory.path)
        assert raw.offsets_s == offsets
        for stored, kept in zip(raw.workload, WORKLOAD, strict=True):
            for field in fields(RecordedRequest):
                value = getattr(stored, field.name)
                same = tuple(value) if isinstance(value, list) else value
                assert same == getattr(kept, field.name), field.name


@pytest.mark.parametrize("arrivals", Arrivals)
def test_walls_form_ratios_only_where_the_engine_sets_the_pace(arrivals: Arrivals) -> None:
    runs = [
        replace(run, trace=replace(run.trace, arrivals=arrivals))
        for run in scripted_blocks(MODES, 1)
    ]
    paced = arrivals in (Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP)
    assert paced == bool(compare(runs))
    bounds = equal_sections(EqualWork.of(runs, FACTS, WORKLOAD, 512, None)).bounds
    assert paced == (bounds["cdb"]["flop_bound"].realised is not None)


# Crashes and interruptions.


def test_a_crash_loses_the_unfinished_repeat_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a", blocks=1, finished=False)
    before = read_raw(path)
    directory = RunDirectory(path)

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", fails)
        with pytest.raises(OutputError, match=r"b1-o0-cdb\.npz: cannot be written \(disk full\)"):
            directory.keep_repeat(scripted_run("cdb", 1, 0), FACTS["cdb"])
    assert not list(path.rglob("*.partial"))
    # Killed between its requests and its own line, which is torn.
    late = scripted_run("static", 1, 1)
    directory.append_requests(
        RequestRecord.of(r, doc_id=None, mode="static", work="equal", block=1, order=1)
        for r in late.results
    )
    for name in ("requests.jsonl", "repeats.jsonl"):
        with (path / name).open("a", encoding="utf-8") as file:
            file.write('{"work":"equal","blo')
    after = read_raw(path)
    assert after.lines == before.lines
    assert [evaluate(r.trace) for r in after.repeats] == [evaluate(r.trace) for r in before.repeats]


@contextlib.contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond a size, as where a disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_or_is_interrupted_leaves_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    lines, document = tmp_path / "a.jsonl", tmp_path / "a.json"
    records = [RequestRecord.of(r, doc_id=1, mode="cdb", work="live") for r in WORKLOAD_RESULTS]
    with files_up_to(1000), pytest.raises(OutputError, match=r"a\.jsonl: .*\(File too large\)"):
        append_lines(lines, records * 9)
    assert not lines.exists()
    append_lines(lines, records)
    write_whole(document, "before")
    before = lines.read_bytes()
    with files_up_to(len(before) + 100):
        with pytest.raises(OutputError, match="make room there"):
            append_lines(lines, records)
        with pytest.raises(OutputError, match=r"a\.json: "):
            write_whole(document, "x" * 99_999)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        for write in (lambda: append_lines(lines, records), lambda: write_whole(document, "x")):
            with pytest.raises(KeyboardInterrupt):
                write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "a.jsonl": before,
        "a.json": b"before",
    }


@pytest.mark.parametrize("room_bytes", [0, 10_000_000])
def test_a_full_disk_ends_a_run_with_one_line_and_what_was_whole(
    room_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``room_bytes``: what is left for the result, after there was none for a request."""
    append_requests, out = RunDirectory.append_requests, tmp_path / "a"

    def scripted(self: TimedSubject, block: int, order: int) -> TimedRun:
        made = scripted_run(self.subject.label, max(block, 0), max(order, 0))
        return TimedRun(block, order, self.subject, made.trace, made.results)

    def append(self: RunDirectory, records: Iterable[RequestRecord]) -> None:
        kept = out / "repeats.jsonl"
        if kept.is_file() and len(list(read_repeats(kept))) == 5:
            with files_up_to(0):
                append_requests(self, records)
        append_requests(self, records)

    def finish(self: RunDirectory, result: Result) -> Path:
        with files_up_to(room_bytes):
            return finish_run(self, result)

    finish_run = RunDirectory.finish
    monkeypatch.setattr(TimedSubject, "run", scripted)
    monkeypatch.setattr(RunDirectory, "append_requests", append)
    monkeypatch.setattr(RunDirectory, "finish", finish)
    arguments = ("run", "ci", "--modes", "static,cdb", "--blocks", "6", "--stages", "none")
    assert main([*arguments, "--out", str(out)]) == 4
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"cdbench: {out / 'requests.jsonl'}: cannot be written (File too large)")
    assert line.endswith(f"5 passes and timed runs are kept in {out}")
    assert len(read_raw(out).repeats) == 5
    assert not [*out.rglob("*.partial"), *out.glob(".claim")]
    if room_bytes:
        result = read_result(out)
        assert (result.status, result.validity.verdict) == ("interrupted", "INVALID")
        assert any("cannot be written" in reason for reason in result.validity.reasons)
        assert check(out) == []
    else:
        assert not (out / "result.json").exists()


def test_a_torn_line_that_is_not_the_last_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a", blocks=1) / "requests.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")
    path.write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"requests\.jsonl:2"):
        list(read_requests(path))


def test_a_repeat_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a", blocks=1)
    lines = (path / "repeats.jsonl").read_text(encoding="utf-8")
    (path / "repeats.jsonl").write_text(lines + lines.split("\n")[0] + "\n", encoding="utf-8")
    with pytest.raises(ContradictionError, match="twice"):
        read_raw(path)


def test_an_interrupted_run_can_be_rederived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def scripted(self: TimedSubject, block: int, order: int) -> TimedRun:
        made = scripted_run(self.subject.label, max(block, 0), max(order, 0))
        if (block, order) == (1, 2):
            raise KeyboardInterrupt
        return TimedRun(block, order, self.subject, made.trace, made.results)

    monkeypatch.setattr(TimedSubject, "run", scripted)
    code = main(
        ["run", "ci", "--modes", "static,cdb", "--blocks", "6", "--out", str(tmp_path / "a")]
    )
    assert code == 130
    capsys.readouterr()
    result = read_result(tmp_path / "a")
    assert (result.status, len(result.blocks)) == ("interrupted", 6)
    assert check(tmp_path / "a") == []
    assert not (tmp_path / "a" / "launches").exists()


def test_a_run_that_measured_nothing_has_nothing_to_recheck(tmp_path: Path) -> None:
    said = scripted_result([])
    workload = said.workload.model_copy(
        update={"requests": 0, "prompt_tokens": 0, "output_tokens": 0}
    )
    nothing = said.model_copy(update={"modes": {}, "files": {}, "workload": workload})
    directory = RunDirectory.create(str(tmp_path / "a"), "x")
    directory.finish(nothing)
    assert check(tmp_path / "a") == []
