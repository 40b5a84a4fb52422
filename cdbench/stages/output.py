"""Where the document goes: proved before anything is measured, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from cdbench.bench.directory import RunDirectory
from cdbench.errors import UsageError
from cdbench.schema.files import read_document
from cdbench.schema.stages import STAGES_FILE, StageCurves

PLOT_FORMATS = (".png", ".svg")


def output_path(out: str, force: bool) -> Path:
    """A file, or ``stages.json`` in a directory.

    Raises:
        UsageError: something else is there, stage curves are there without ``force``, or the place
        cannot be written.
    """
    path = Path(out).expanduser()
    if path.suffix != ".json":
        path /= STAGES_FILE
    if path.exists():
        _may_replace(path, force)
    _prove_writable(path, "--out")
    return path


def plot_path(plot: str) -> Path:
    """A picture's file. UsageError for an unknown kind or a place that cannot be written."""
    path = Path(plot).expanduser()
    if path.suffix not in PLOT_FORMATS:
        raise UsageError(
            f"--plot {path}: {path.suffix or 'no ending'} is no picture that can be drawn; end it "
            f"in {' or '.join(PLOT_FORMATS)}"
        )
    _prove_writable(path, "--plot")
    return path


def default_directory(model: str) -> RunDirectory:
    """A new directory among the runs."""
    return RunDirectory.create(None, f"stages-{model}")


def _may_replace(path: Path, force: bool) -> None:
    if not force:
        raise UsageError(f"--out {path}: exists; name another file, or add --force")
    try:
        read_document(StageCurves, path)
    except UsageError:
        raise UsageError(
            f"--out {path}: holds no stage curves, so it is not replaced; name another file"
        ) from None


def _prove_writable(path: Path, flag: str) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("")
        partial.unlink()
    except OSError as error:
        raise UsageError(
            f"{flag} {path}: cannot be written ({error.strerror}); name another place"
        ) from None
