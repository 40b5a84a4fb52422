"""Where stage curves and their picture go: never over, or into, what belongs to something else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cdbench.cli.main import invoke
from cdbench.errors import UsageError
from cdbench.stages.output import claimed_output


def held_up(files: dict[str, str], arguments: list[str], words: str, place: Path) -> None:
    """The command refuses these arguments in one line and leaves these files as they are."""
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (place / name).mkdir(exist_ok=True)
        else:
            (place / name).write_text(content)
    before = sorted(place.rglob("*"))
    with pytest.raises(UsageError, match=words), contextlib.chdir(place):
        invoke(["stages", *arguments])
    assert sorted(place.rglob("*")) == before
    assert all(
        (place / name).read_text() == content
        for name, content in files.items()
        if not name.endswith("/")
    )


@pytest.mark.parametrize(
    ("files", "arguments", "words"),
    [
        ({"a.svg": "mine"}, ["--plot", "a.svg"], "--plot a.svg: exists"),
        ({"a.svg": "mine"}, ["--plot", "a.svg", "--force"], "is no picture of stage curves"),
        ({"a.svg/": ""}, ["--plot", "a.svg", "--force"], "--plot a.svg: is a directory"),
        ({}, ["--out", "a.svg", "--plot", "a.svg"], "--plot a.svg: overlaps with --out"),
        ({}, ["--out", "a.json", "--plot", "a.json/b.svg"], "overlaps with --out a.json"),
        ({"run/result.json": "{}"}, ["--out", "run"], r"run holds something else \(result.json\)"),
        ({"run/result.json": "{}"}, ["--out", "run/a.json"], "run holds something else"),
        ({"run/repeats.jsonl": ""}, ["--out", "run", "--force"], "holds something else"),
        ({"run/sweep.json": ""}, ["--out", "a", "--plot", "run/a.png"], "holds something else"),
        ({"run/record.json": ""}, ["--out", "run"], "holds something else"),
        ({"file": ""}, ["--out", "file/a.json"], "cannot be written"),
        ({"file": ""}, ["--out", "a", "--plot", "file/a.svg"], "cannot be written"),
        ({}, ["--out", "x" * 300], "File name too long"),
        ({}, ["--out", "a", "--plot", f"{'x' * 300}.svg"], "File name too long"),
        ({"a.json": "{}"}, ["--out", "a.json"], "exists; name another file"),
        ({"a.json/": ""}, ["--out", "a.json"], "is a directory; name a file"),
    ],
)
def test_what_is_in_the_way_is_refused_before_anything_is_measured_and_kept(
    files: dict[str, str],
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("cdbench.stages.measure.measure_stages", measured)
    held_up(files, arguments, words, tmp_path)


def test_two_at_once_do_not_write_the_same_curves(tmp_path: Path) -> None:
    document = str(tmp_path / "new" / "a.json")
    with (
        claimed_output(document, None, False, "m"),
        pytest.raises(UsageError, match="writes there"),
        claimed_output(document, None, False, "m"),
    ):
        raise AssertionError("two have it")
    assert not list(tmp_path.iterdir())
