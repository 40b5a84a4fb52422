"""A gate as a command: nothing that it reads is written over, and a verdict is never lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdbench.cli.interrupts import interrupted_once
from cdbench.cli.main import main
from cdbench.compare.pair import files as pair_files
from cdbench.errors import OutputError
from cdbench.resources import data_dir
from tests.comparing import timed_result, walls, written
from tests.pairing import GATE, Fake, Sides

CDBENCH = (sys.executable, "-c", "import sys; from cdbench.cli.main import main; sys.exit(main())")
ALONE = "name: g\nmodes: [cdb, static]\nexact: [token_loops]\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run, a gate file, and a directory for baselines."""
    path = written(tmp_path / "run", timed_result(walls(static=2.0, cdb=1.0)))
    (tmp_path / "gate.yaml").write_text(ALONE)
    (tmp_path / "bl").mkdir()
    return path


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("flag", "place"),
    [
        ("--receipt", "run/result.json"),
        ("--junit", "run/requests.jsonl"),
        ("--summary", "gate.yaml"),
        ("--junit", "bl/g.json"),
        ("--receipt", "bl/g.0123.json"),
        ("--receipt", "link.json"),
    ],
)
def test_what_a_gate_reads_is_not_written_over(
    run: Path, flag: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.parent
    (folder / "bl" / "g.0123.json").write_text("{}")
    (folder / "link.json").symlink_to("run/result.json")
    before = snapshot(folder)
    gate = ["--gate", str(folder / "gate.yaml"), "--baseline", str(folder / "bl")]
    assert main(["compare", str(run), *gate, flag, str(folder / place)]) == 2
    shown, told = capsys.readouterr()
    assert shown == ""
    assert told.startswith(f"cdbench: {flag} ")
    assert told.count("\n") == 1
    assert snapshot(folder) == before


def test_a_shipped_gate_is_not_written_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = data_dir("configs") / "gates" / "ci.yaml"
    before = shipped.read_bytes()
    assert main(["compare", str(run), "--gate", "ci", "--summary", str(shipped)]) == 2
    assert "is a file that is read here too" in capsys.readouterr().err
    assert shipped.read_bytes() == before


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_verdict_is_said_where_its_receipt_cannot_be_kept(
    run: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    gate = ["--gate", str(run.parent / "gate.yaml"), "--baseline", str(run.parent / "bl")]
    assert main(["compare", str(run), *gate, "--receipt", "/dev/full", *more]) == 4
    shown, told = capsys.readouterr()
    assert "PASS" in shown
    if more:
        assert json.loads(shown)["verdict"] == "PASS"
    assert told.count("\n") == 1
    assert "/dev/full: cannot be written (No space left on device)" in told


# The paired gate.


def paired(sides: Sides, folder: Path) -> list[str]:
    """The command line of a gate on two fakes that keeps its files in ``folder/out``."""
    gate = folder / "pair.json"
    gate.write_text(json.dumps(GATE))
    pair = ["compare", "ci", "--pair", sides.old, sides.new]
    return [*pair, "--gate", str(gate), "--out", str(folder / "out")]


@pytest.mark.parametrize("kept", ["pair.json", "receipt"])
def test_a_paired_verdict_is_said_where_it_cannot_be_kept(
    kept: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, document: object) -> None:
        raise OutputError(f"{path}: is full")

    line = paired(Sides.of(tmp_path, Fake(), Fake(source="b")), tmp_path)
    if kept == "pair.json":
        monkeypatch.setattr(pair_files, "write_document", full)
    else:
        line += ["--receipt", "/dev/full"]
    assert main(line) == 4
    shown, told = capsys.readouterr()
    assert "PASS" in shown
    assert ("is full" if kept == "pair.json" else "No space left") in told.splitlines()[-1]


def test_a_paired_gates_own_file_is_not_its_receipt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    sides = Sides.of(tmp_path, Fake(), Fake(source="b"))
    place = str(tmp_path / "out" / "pair.json")
    assert main([*paired(sides, tmp_path), "--receipt", place]) == 2
    assert "read here" in capsys.readouterr().err
    assert sides.commands == []


@pytest.mark.parametrize("sent", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
def test_a_cancelled_gate_leaves_no_process_and_no_file(
    sent: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    sides = Sides.of(tmp_path, Fake(child=True), Fake(fate={"time": "hang"}, child=True))
    command = [*CDBENCH, *paired(sides, tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as gate:
        wait_for(lambda: bool(sides.turns))
        for each in sent:
            gate.send_signal(each)
        shown, told = gate.communicate(timeout=30)
    assert gate.returncode == 130
    assert shown == b""
    assert told.splitlines()[-1] == b"cdbench: interrupted"
    assert len(sides.pids) == 6
    wait_for(lambda: not any(map(runs, sides.pids)))
    assert not (tmp_path / "out").exists()


def test_only_the_first_signal_interrupts_and_handlers_come_back() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    ended = []

    def work() -> None:
        with interrupted_once():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                ended.append("in peace")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert ended == ["in peace"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


# The worker's end of the pipe.

BUSY = """
import subprocess, sys, time
from cdbench.compare.pair import worker
def answer(self, command):
    if command["command"] == "quit":
        return {"ok": {}}
    print(subprocess.Popen(["sleep", "600"]).pid, file=sys.stderr, flush=True)
    time.sleep(600)
worker.Served.answer = answer
sys.exit(worker.main())
"""


def a_worker(code: str = BUSY) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd=Path(__file__).parent.parent,
    )


def test_a_busy_worker_ends_with_its_gate_and_with_what_it_started() -> None:
    with a_worker() as worker:
        assert worker.stdin is not None
        assert worker.stderr is not None
        worker.stdin.write(b'{"id": 1, "command": "time", "mode": "cdb"}\n')
        worker.stdin.flush()
        child = int(worker.stderr.readline())
        worker.stdin.close()
        assert worker.wait(timeout=10) != 0
    wait_for(lambda: not runs(child))


def test_a_worker_that_parts_answers_and_ends_in_good_order() -> None:
    with a_worker() as worker:
        # Nothing more is said, and the pipe stays open: it must not wait for its end.
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdin.write(b'{"id": 1, "command": "quit"}\n')
        worker.stdin.flush()
        assert json.loads(worker.stdout.readline()) == {"id": 1, "ok": {}}
        assert worker.wait(timeout=10) == 0
        assert worker.stderr.read() == b""


def wait_for(what: Callable[[], bool]) -> None:
    """Until it holds, or for twenty seconds."""
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_two_gates_at_once_may_write_the_same_receipt(run: Path, tmp_path: Path) -> None:
    gate = ["--gate", str(tmp_path / "gate.yaml"), "--baseline", str(tmp_path / "bl")]
    line = [*CDBENCH, "compare", str(run), *gate, "--receipt", str(tmp_path / "r.json")]
    both = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [gate.wait(timeout=60) for gate in both] == [0, 0]
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "PASS"
    assert not list(tmp_path.glob("*.partial"))
