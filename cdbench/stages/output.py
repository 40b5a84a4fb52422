"""Where document and picture go: proved before anything is measured, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdbench.bench.directory import RunDirectory
from cdbench.bench.places import claim_file, typed_path
from cdbench.errors import UsageError
from cdbench.render.stage_plot import is_plot
from cdbench.schema import REPEATS_FILE, REQUESTS_FILE, RESULT_FILE, WORKLOAD_FILE
from cdbench.schema.files import read_document
from cdbench.schema.recording import RECORD_FILE
from cdbench.schema.stages import STAGES_FILE, StageCurves
from cdbench.schema.sweep import SWEEP_FILE

PLOT_FORMATS = (".png", ".svg")

OTHERS = (RESULT_FILE, REQUESTS_FILE, REPEATS_FILE, WORKLOAD_FILE, SWEEP_FILE, RECORD_FILE)
"""Files of other commands: a directory that has one of them takes nothing of this one."""


@dataclass(frozen=True)
class StageOutput:
    """The files to write: the document, and the picture where one was asked for."""

    document: Path
    picture: Path | None


@contextlib.contextmanager
def claimed_output(
    out: str | None, plot: str | None, force: bool, model: str
) -> Iterator[StageOutput]:
    """The files, writable and this process's alone in the block.

    ``out``: a file, or a directory for ``stages.json``; None: a new directory among the runs.

    Raises:
        UsageError: another process writes there, something else is there, stage curves or their
        picture are there without ``force``, or the place cannot be written.
    """
    document = None if out is None else _document(out)
    picture = None if plot is None else _picture(plot)
    if document is not None and picture is not None:
        _refuse_overlap(document, picture)
    with contextlib.ExitStack() as held:
        if document is None:
            directory = RunDirectory.create(None, f"stages-{model}")
            held.callback(directory.close)
            document = directory.path / STAGES_FILE
        else:
            held.enter_context(claim_file(document, "--out"))
            _check_document(document, force)
        if picture is not None:
            held.enter_context(claim_file(picture, "--plot"))
            _check_picture(picture, force)
        yield StageOutput(document, picture)


def _document(out: str) -> Path:
    path = typed_path(out, "--out")
    return path if path.suffix == ".json" else path / STAGES_FILE


def _picture(plot: str) -> Path:
    path = typed_path(plot, "--plot")
    if path.suffix not in PLOT_FORMATS:
        raise UsageError(
            f"--plot {path}: {path.suffix or 'no ending'} is no picture that can be drawn; end it "
            f"in {' or '.join(PLOT_FORMATS)}"
        )
    return path


def _refuse_overlap(document: Path, picture: Path) -> None:
    """Neither may be a directory on the way to the other."""
    one, other = (Path(os.path.realpath(path)) for path in (document, picture))
    if one in other.parents or other in one.parents:
        raise UsageError(f"--plot {picture}: overlaps with --out {document}; name another file")


def _check_document(path: Path, force: bool) -> None:
    _refuse_others(path, force, "--out")
    if not path.exists():
        return
    try:
        read_document(StageCurves, path)
    except UsageError:
        raise UsageError(
            f"--out {path}: holds no stage curves, so it is not replaced; name another file"
        ) from None


def _check_picture(path: Path, force: bool) -> None:
    _refuse_others(path, force, "--plot")
    if path.exists() and not is_plot(path):
        raise UsageError(
            f"--plot {path}: is no picture of stage curves, so it is not replaced; name another "
            "file"
        )


def _refuse_others(path: Path, force: bool, flag: str) -> None:
    if path.exists() and not force:
        raise UsageError(f"{flag} {path}: exists; name another file, or add --force")
    for name in OTHERS:
        if path.name != name and (path.parent / name).exists():
            raise UsageError(
                f"{flag} {path}: {path.parent} holds something else ({name}); name another "
                "directory"
            )
