"""``launches.npz``: every launch of every timed run, as columns.

One member per timed run, ``b<block>-o<order>-<mode>``, with these arrays, one entry per launch in
the order they were made:

- ``stage``: index into ``stage_names``
- ``decode_rows``, ``prefill_rows``, ``context``, ``runnable``: as in ``LaunchTrace``, in the
  smallest unsigned integers that hold them
- ``start_s``, ``duration_s``: float64 seconds on the run's clock, exactly as measured
- ``has_depths``: 1 where decode rows had loops (core); their rows of ``depth_counts`` follow one
  another, entry k − 1 counting the decode rows at loop k

While a run goes on each timed run is a file of its own under ``launches/``: appending to a zip
rewrites its directory, so a crash in the middle would lose everything. ``merge_launches`` makes one
compressed file of them at the end. Readers find a member in either place.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cdbench.errors import UsageError
from cdbench.metrics.trace import LaunchTrace
from cdbench.schema.files import LAUNCHES_FILE, output_errors, replacing

PARTS = "launches"
"""Directory of the members not merged yet."""

MODE_CHARACTERS = 100
"""Of a mode in a member's name, which is also a file's: a dense model may be named by its path."""

Columns = Mapping[str, npt.NDArray[Any]]

_COUNTS = ("decode_rows", "prefill_rows", "context", "runnable")
_TIMES = ("start_s", "duration_s")


class StoredLaunch(NamedTuple):
    """One launch read back; a ``LaunchTrace``, so metrics are made from it as from a live one."""

    stage: str
    decode_rows: int
    prefill_rows: int
    depth_counts: tuple[int, ...]
    context: int
    runnable: int
    start_s: float
    duration_s: float


def member_name(block: int, order: int, mode: str) -> str:
    """The name of one timed run's member. Place alone tells them apart; the mode is for people."""
    return f"b{block}-o{order}-{re.sub(r'[^A-Za-z0-9_.@+-]+', '-', mode)[:MODE_CHARACTERS]}"


def pack(launches: Sequence[LaunchTrace]) -> dict[str, npt.NDArray[Any]]:
    """Launches as columns."""
    stage_names = sorted({str(launch.stage) for launch in launches})
    index = {name: place for place, name in enumerate(stage_names)}
    mixes = [launch.depth_counts for launch in launches]
    deepest = max(map(len, mixes), default=0)
    depths = [[*mix, *[0] * (deepest - len(mix))] for mix in mixes if len(mix)]
    columns: dict[str, npt.NDArray[Any]] = {
        "stage_names": np.array(stage_names, dtype=np.str_),
        "stage": np.array([index[str(launch.stage)] for launch in launches], dtype=np.uint8),
        "has_depths": np.array([len(mix) > 0 for mix in mixes], dtype=np.uint8),
        "depth_counts": _smallest(np.array(depths, dtype=np.int64).reshape(len(depths), deepest)),
    }
    for name in _COUNTS:
        values = np.array([getattr(launch, name) for launch in launches], dtype=np.int64)
        columns[name] = _smallest(values)
    for name in _TIMES:
        columns[name] = np.array([getattr(launch, name) for launch in launches], dtype=np.float64)
    return columns


def unpack(columns: Columns) -> list[StoredLaunch]:
    """The launches again.

    Raises:
        ValueError: a column is missing or the columns do not belong together.
    """
    wanted = ("stage_names", "stage", "has_depths", "depth_counts", *_COUNTS, *_TIMES)
    if missing := [name for name in wanted if name not in columns]:
        raise ValueError(f"column {missing[0]} is missing")
    size = len(columns["stage"])
    for name in ("has_depths", *_COUNTS, *_TIMES):
        if columns[name].shape != (size,):
            raise ValueError(f"column {name} has {columns[name].size} entries for {size} launches")
    known, depths = columns["has_depths"] != 0, columns["depth_counts"]
    if depths.ndim != 2 or len(depths) != int(known.sum()):
        raise ValueError("column depth_counts does not match has_depths")
    if size and int(columns["stage"].max()) >= len(columns["stage_names"]):
        raise ValueError("column stage names a stage that is not listed")
    names, mixes = columns["stage_names"].tolist(), iter(depths.tolist())
    decode, prefill, context, runnable = (columns[name].tolist() for name in _COUNTS)
    start_s, duration_s = (columns[name].tolist() for name in _TIMES)
    fields = zip(
        [names[stage] for stage in columns["stage"].tolist()],
        decode,
        prefill,
        [_mix(mixes, has) for has in known.tolist()],
        context,
        runnable,
        start_s,
        duration_s,
        strict=True,
    )
    return [StoredLaunch(*each) for each in fields]


def write_launches(directory: Path, member: str, launches: Sequence[LaunchTrace]) -> Path:
    """Write one timed run's launches, whole or not at all; uncompressed, because a run goes on."""
    path = directory / PARTS / f"{member}.npz"
    with output_errors(path.parent):
        path.parent.mkdir(exist_ok=True)
    columns = pack(launches)
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **columns)
    return path


def merge_launches(directory: Path) -> Path | None:
    """Make one compressed ``launches.npz`` of the members under ``launches/``; None without any."""
    parts = sorted((directory / PARTS).glob("*.npz"))
    if not parts:
        return None
    path = directory / LAUNCHES_FILE
    with replacing(path) as file:
        _write_merged(file, parts)
    for leftover in (*parts, *(directory / PARTS).glob("*.partial")):
        leftover.unlink()
    (directory / PARTS).rmdir()
    return path


def read_launches(directory: Path, member: str) -> list[StoredLaunch]:
    """The launches of one timed run, merged or not.

    Raises:
        UsageError: they are missing, unreadable or do not belong together.
    """
    part = directory / PARTS / f"{member}.npz"
    merged = directory / LAUNCHES_FILE
    path, prefix = (part, "") if part.is_file() else (merged, f"{member}/")
    try:
        with zipfile.ZipFile(path):  # numpy would take other files for other things
            pass
        with np.load(path, allow_pickle=False) as stored:
            return unpack(
                {
                    name.removeprefix(prefix): stored[name]
                    for name in stored.files
                    if name.startswith(prefix)
                }
            )
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = str(error)
    raise UsageError(
        f"{path}: launches of {member}: {why}; the raw records are incomplete, so rerun the run"
    )


def _mix(mixes: Any, known: bool) -> tuple[int, ...]:
    """The next depth mix, up to its deepest row."""
    if not known:
        return ()
    counts = next(mixes)
    while counts and counts[-1] == 0:
        counts.pop()
    return tuple(counts)


def _smallest(values: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _write_merged(file: IO[bytes], parts: Sequence[Path]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as merged:
        for part in parts:
            with np.load(part, allow_pickle=False) as stored:
                for name in stored.files:
                    with merged.open(f"{part.stem}/{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, stored[name], allow_pickle=False)
