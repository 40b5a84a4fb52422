"""Places to write to: one writer at a time, proved beforehand, and nothing left of a refusal."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from cdbench.bench import directory as run_directory
from cdbench.bench.directory import RunDirectory, slug
from cdbench.bench.places import (
    CLAIM_FILE,
    Claim,
    InUseError,
    claim_directory,
    claim_file,
    prove_writable,
    typed_path,
)
from cdbench.cli.main import main
from cdbench.errors import OutputError, UsageError
from cdbench.schema.files import write_whole
from cdbench.sweep.directory import SweepDirectory

LONG = "x" * 300


def everything_in(path: Path) -> list[Path]:
    return sorted(path.rglob("*"))


def test_a_place_has_one_writer_until_it_is_released(tmp_path: Path) -> None:
    for claim in (claim_directory, claim_file):
        place = tmp_path / claim.__name__ / "a.json"
        first = claim(place, "--out")
        with pytest.raises(InUseError, match=r"--out .*a\.json: process \d+ writes there"):
            claim(place, "--out")
        first.release()
        with claim(place, "--out"):
            pass
    assert everything_in(tmp_path) == []


def test_of_many_who_claim_at_once_one_wins(tmp_path: Path) -> None:
    many = 8
    start = Barrier(many)

    def attempt(_: int) -> Claim | None:
        start.wait()
        try:
            return claim_directory(tmp_path / "a", "--out")
        except InUseError:
            return None

    with ThreadPoolExecutor(many) as threads:
        for _ in range(20):
            won = [claim for claim in threads.map(attempt, range(many)) if claim is not None]
            assert len(won) == 1
            won[0].release()


def test_the_claim_of_a_killed_process_is_nobodys(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from cdbench.bench.places import claim_directory\n"
        f"claim = claim_directory(Path({str(tmp_path / 'a')!r}), '--out')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert [path.name for path in (tmp_path / "a").iterdir()] == [CLAIM_FILE]
    directory = RunDirectory.create(str(tmp_path / "a"), "x")
    directory.close()
    assert everything_in(tmp_path) == [tmp_path / "a"]


def test_directories_made_for_a_claim_stay_only_where_something_lies_in_them(
    tmp_path: Path,
) -> None:
    claim = claim_directory(tmp_path / "a" / "b" / "c", "--out")
    (tmp_path / "a" / "kept").touch()
    claim.release()
    claim.release()
    assert everything_in(tmp_path) == [tmp_path / "a", tmp_path / "a" / "kept"]


@pytest.mark.parametrize(
    "name",
    [LONG, f"new/{LONG}", "file/below", "file/new/below", "/proc/new/below", "new\0", "loop"],
)
def test_a_place_that_cannot_be_written_is_refused_and_nothing_is_left(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = everything_in(tmp_path)
    for refused in (
        lambda path: claim_directory(path, "--out"),
        lambda path: claim_file(path / "a.json", "--out"),
        lambda path: prove_writable(path / "a.json", "--out"),
        lambda path: RunDirectory.create(str(path), "x"),
        lambda path: SweepDirectory.of(str(path), "s").claimed("s").__enter__(),
    ):
        with pytest.raises(UsageError, match=r"--out .*: cannot be written .*; name another"):
            refused(tmp_path / name)
        assert everything_in(tmp_path) == before


def test_a_file_is_refused_where_a_directory_is_or_its_partial_name_is_too_long(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="is a directory; name a file"):
        claim_file(tmp_path, "--plot")
    with pytest.raises(UsageError, match="File name too long"):
        claim_file(tmp_path / ("x" * 250), "--plot")
    assert everything_in(tmp_path) == []


# What is there and is no regular file.


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link, loose = tmp_path / "far" / "t", tmp_path / "link", tmp_path / "loose"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    loose.symlink_to("far/new")
    for path in (link, loose):
        prove_writable(path, "--out")
        write_whole(path, "new")
        assert path.is_symlink()
        assert path.read_text() == "new"
    assert target.read_text() == "new"
    assert sorted(target.parent.iterdir()) == [tmp_path / "far" / "new", target]


def test_a_pipe_takes_what_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    prove_writable(pipe, "--out")
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit(pipe.read_text)
        write_whole(pipe, "said")
        assert found.result(timeout=10) == "said"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_device_takes_what_is_written_and_stays_a_device() -> None:
    before = os.stat("/dev/null")
    prove_writable(Path("/dev/null"), "--out")
    write_whole(Path("/dev/null"), "gone")
    assert os.path.samestat(before, os.stat("/dev/null"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OutputError, match="No space left"):
        write_whole(Path("/dev/full"), "x")


def test_what_can_neither_be_replaced_nor_written_into_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(place))
        with pytest.raises(UsageError, match=r"--out .*is no regular file\); name another place"):
            prove_writable(place, "--out")
        with pytest.raises(OutputError, match="no regular file"):
            write_whole(place, "x")
    assert stat.S_ISSOCK(place.stat().st_mode)


def test_an_open_file_of_the_process_is_not_replaced_under_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as held:
        (tmp_path / "stdout").symlink_to(f"/proc/self/fd/{held.fileno()}")
        for path in (Path(f"/dev/fd/{held.fileno()}"), tmp_path / "stdout"):
            with pytest.raises(UsageError, match="is an open file of this process"):
                prove_writable(path, "--out")


def test_many_who_write_one_file_at_once_leave_one_of_theirs(tmp_path: Path) -> None:
    file, start = tmp_path / "f", Barrier(8)

    def write(number: int) -> None:
        start.wait()
        for _ in range(20):
            write_whole(file, str(number) * 5000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    text = file.read_text()
    assert text == text[0] * 5000
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_has_the_permissions_that_any_new_one_has(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "f", "x")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_unknown_home_is_refused() -> None:
    with pytest.raises(UsageError, match="--out ~nobody-here/a: ~nobody-here is no home"):
        typed_path("~nobody-here/a", "--out")


# Runs and sweeps.


def test_a_run_directory_belongs_to_one_run_until_it_is_closed(tmp_path: Path) -> None:
    out = str(tmp_path / "a")
    first = RunDirectory.create(out, "x")
    with pytest.raises(UsageError, match="writes there"):
        RunDirectory.create(out, "x")
    assert main(["run", "--out", out]) == 2
    assert [path.name for path in (tmp_path / "a").iterdir()] == [CLAIM_FILE]
    first.close()
    second = RunDirectory.create(out, "x")
    (second.path / "result.json").touch()
    second.close()
    with pytest.raises(UsageError, match="is not empty"):
        RunDirectory.create(out, "x")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["result.json"]


def test_runs_without_a_directory_of_their_own_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "RUNS", tmp_path)
    runs = [RunDirectory.create(None, "m") for _ in range(3)]
    assert len({run.path for run in runs}) == 3
    for run in runs:
        run.close()
    assert everything_in(tmp_path) == []


def test_the_name_of_a_model_far_down_does_not_make_a_name_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "RUNS", tmp_path)
    RunDirectory.create(None, f"/models/{LONG}").close()
    assert slug("/a b/c.d") == "a-b-c.d"


def test_a_sweep_directory_belongs_to_one_invocation(tmp_path: Path) -> None:
    directory = SweepDirectory.of(str(tmp_path / "o"), "s")
    with directory.claimed("s"):
        (tmp_path / "o" / "round-1").mkdir()
        with pytest.raises(UsageError, match="writes there"), directory.claimed("s"):
            raise AssertionError("two have it")
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["round-1"]
    with pytest.raises(UsageError, match="is no sweep"), directory.claimed("s"):
        raise AssertionError("it holds something else")
