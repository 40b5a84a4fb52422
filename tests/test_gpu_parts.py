"""What runs the parts of the GPU script: limits, lost processes, carried packages, comparisons."""

from __future__ import annotations

import os
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu_parts import supervisor, switches
from scripts.gpu_parts.catalogue import PARTS, Part
from scripts.gpu_parts.check import Check, NotAvailable
from scripts.gpu_parts.command import ROOT, Options
from scripts.gpu_parts.packages import MissingPackagesError, provide
from scripts.gpu_parts.record import Record
from scripts.gpu_parts.worker import run_part, work

Found = dict[str, Any]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    record = Record(tmp_path / "check.json")
    record.begin({"manifest": {}, "device": "cpu", "tiny": True, "budget_s": 1.0})
    return record


@pytest.fixture
def check(tmp_path: Path, record: Record) -> Check:
    return Check("cpu", True, tmp_path, record)


# A part and how it ends.


@dataclass(frozen=True)
class Made(Part):
    """A part made of a function at hand."""

    made: Callable[[Check, Found], None] = lambda check, found: None

    def load(self) -> Callable[[Check, Found], None]:
        return self.made


def end_of(check: Check, made: Callable[[Check, Found], None], limit_s: float = 60) -> Found:
    run_part(Made("made", "", 1, 1, "", made), check, limit_s)
    entry: Found = Record(check.record.path, resumed=True).parts["made"]
    return entry


def test_a_part_that_is_cut_keeps_what_it_has(check: Check) -> None:
    def endless(check: Check, found: Found) -> None:
        found["first"] = 1
        assert 0 < check.left_s <= 0.2
        time.sleep(30)
        found["second"] = 2

    start = time.monotonic()
    entry = end_of(check, endless, limit_s=0.2)
    assert time.monotonic() - start < 10
    assert (entry["status"], entry["found"]) == ("cut", {"first": 1})
    assert not check.record.bad, "that it took long is no fault"


def test_a_part_that_fails_leaves_its_traceback(check: Check) -> None:
    def wrong(check: Check, found: Found) -> None:
        found["first"] = 1
        raise RuntimeError("two\nlines")

    entry = end_of(check, wrong)
    assert (entry["status"], entry["why"]) == ("failed", "RuntimeError: two lines")
    assert entry["found"] == {"first": 1}
    assert "in wrong" in "\n".join(entry["traceback"])
    assert check.record.bad == ["made"]


def test_what_is_not_there_is_no_failure(check: Check) -> None:
    def refused(check: Check, found: Found) -> None:
        raise NotAvailable("engine.graphs: not yet")

    entry = end_of(check, refused)
    assert (entry["status"], entry["why"]) == ("not available", "engine.graphs: not yet")
    assert not check.record.bad


def test_faults_are_bad_and_done(check: Check) -> None:
    entry = end_of(check, lambda check, found: found.update(faults=2))
    assert entry["status"] == "done"
    assert check.record.bad == ["made"]
    assert not check.record.clean("made")


def test_parts_that_no_longer_fit_are_skipped_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    out = tmp_path / "check.json"
    options = Options(out, "cpu", False, tuple(PARTS), budget_s=5.0)
    assert work(options, tmp_path, resume=False) == 0
    record = Record(out, resumed=True)
    assert {entry["status"] for entry in record.parts.values()} == {"skipped"}
    assert record.parts["fixtures"]["why"] == "it takes about 12 s, and 5 s are left"
    assert capsys.readouterr().out == "ready\n", "no part has begun"


def test_only_what_was_shown_right_is_timed(check: Check) -> None:
    assert check.proven_keys() == {}
    check.record.keep("graphs", "not available", why="not yet")
    assert check.proven_keys() == {}
    check.record.keep("graphs", "done", found={"faults": 0})
    check.record.keep("attention", "done", found={"faults": 0})
    assert check.proven_keys() == {"engine.graphs": True}
    check.record.keep("graphs", "failed", why="crashed")
    check.record.keep("attention", "done", found={"faults": 1})
    assert check.proven_keys() == {"engine.graphs": False, "engine.attention": "sdpa"}


def test_graphs_are_tried_with_the_attention_found_right(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that does not run is no fault of the graphs."""
    seen: list[tuple[Found, Found]] = []
    monkeypatch.setattr(switches, "compare", lambda check, found, on, off: seen.append((on, off)))
    check.record.keep("attention", "failed", why="does not compile")
    switches.graphs(check, {})
    sdpa = {"engine.attention": "sdpa"}
    assert seen == [({**sdpa, "engine.graphs": True}, {**sdpa, "engine.graphs": False})]
    assert list(PARTS).index("attention") < list(PARTS).index("graphs")


# Processes that are lost.

WORKER = """
    import os, signal, sys, time
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from scripts.gpu_parts.record import Record
    words = sys.argv[1:]
    parts = words[words.index("--parts") + 1:]
    record = Record(Path(words[words.index("--out") + 1]), "--resume" in words)
    if "--resume" not in words:
        record.begin({{"manifest": {{}}, "device": "cpu", "tiny": True}})
    print("ready", flush=True)
    for part in parts:
        print("begin", part, 0.2, flush=True)
        print("\\nptxas info: what a compiler says, and an empty line, say nothing", flush=True)
        if part == "graphs":
            os.kill(os.getpid(), signal.SIGKILL)
        if part == "attention":
            time.sleep(60)
        if part == "ouro_64":
            record.keep(part, "failed", why="the device is gone")
            sys.exit(75)
        record.keep(part, "done")
        print("end", flush=True)
"""


def stand_in(folder: Path, text: str) -> Path:
    """A checkout whose script is another."""
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "gpu_check.py").write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def options(tmp_path: Path) -> Options:
    names = ("fixtures", "graphs", "attention", "ouro_stages", "ouro_64", "changed")
    return Options(tmp_path / "check.json", "cpu", True, names, 60.0)


def test_a_lost_process_costs_its_part_alone(
    tmp_path: Path,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = stand_in(tmp_path / "made", WORKER.format(root=str(ROOT)))
    monkeypatch.setattr(supervisor, "ROOT", root)
    monkeypatch.setattr(supervisor, "GRACE_S", 1.0)
    assert supervisor.supervise(options) == 1, "a part has failed"
    parts = Record(options.out, resumed=True).parts
    assert {name: entry["status"] for name, entry in parts.items()} == {
        "fixtures": "done",
        "graphs": "failed",
        "attention": "cut",
        "ouro_stages": "done",
        "ouro_64": "failed",
        "changed": "done",
    }
    assert parts["graphs"]["why"] == "its process ended with signal SIGKILL"
    assert "killed" in parts["attention"]["why"]
    summary = capsys.readouterr().out
    assert "failed: graphs: its process ended with signal SIGKILL" in summary
    assert "done: fixtures (0 s), ouro_stages (0 s), changed (0 s)" in summary


def test_a_worker_that_cannot_start_ends_the_check(
    tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ROOT", stand_in(tmp_path / "made", "raise SystemExit(2)"))
    options.out.write_text("an older document")
    assert supervisor.supervise(options) == 2
    assert options.out.read_text() == "an older document"


def test_a_worker_that_cannot_go_on_is_not_started_for_ever(
    tmp_path: Path, options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_once = WORKER.replace(
        'print("ready"', 'sys.exit(9) if "--resume" in words else print("ready"'
    )
    root = stand_in(tmp_path / "made", only_once.format(root=str(ROOT)))
    monkeypatch.setattr(supervisor, "ROOT", root)
    assert supervisor.supervise(options) == 1
    parts = Record(options.out, resumed=True).parts
    assert parts.pop("fixtures")["status"] == "done"
    assert parts.pop("graphs")["why"] == "its process ended with signal SIGKILL"
    assert {entry["why"] for entry in parts.values()} == {"its process ended with exit code 9"}


# Packages that were carried along.


@pytest.fixture
def imports() -> Iterator[None]:
    """Leaves this process's imports as they were."""
    path, others = list(sys.path), os.environ.get("PYTHONPATH")
    yield
    sys.path[:] = path
    sys.modules.pop("carried_along", None)
    os.environ.pop("PYTHONPATH", None)
    if others is not None:
        os.environ["PYTHONPATH"] = others


@pytest.mark.usefixtures("imports")
def test_a_missing_package_comes_from_its_wheel(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "carried_along-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried_along/__init__.py", "VALUE = 7\n")
    before = list(sys.path)
    provide(tmp_path, installed=("json",), carried=("pydantic",))
    assert sys.path == before, "nothing was missing"
    provide(tmp_path, installed=("json",), carried=("carried_along",))
    import carried_along  # type: ignore[import-not-found]

    assert carried_along.VALUE == 7
    first = os.environ["PYTHONPATH"].split(os.pathsep)[0]
    assert Path(carried_along.__file__).is_relative_to(first), "processes started later have it"


@pytest.mark.usefixtures("imports")
def test_a_package_that_nobody_brings_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        MissingPackagesError, match="carried_along: there is no package of that name"
    ):
        provide(tmp_path, installed=(), carried=("carried_along",))
    with zipfile.ZipFile(tmp_path / "other-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("other_one.py", "")
    with pytest.raises(MissingPackagesError, match=r"no_such_thing: 1 wheels of .+ do not bring"):
        provide(tmp_path, installed=("no_such_thing",), carried=())
