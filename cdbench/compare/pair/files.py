"""Where a paired gate keeps its files while it runs, and what of them stays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdbench.bench.directory import RunDirectory
from cdbench.errors import OutputError, WorkerError
from cdbench.schema import REQUESTS_FILE, WORKLOAD_FILE
from cdbench.schema.files import write_document
from cdbench.schema.pairing import PairOutcome

PAIR_FILE = "pair.json"
LOGS = ("recording.stderr", "old.stderr", "new.stderr")


class UnkeptOutcome(OutputError):
    """A gate was judged, but its outcome could not be written."""

    def __init__(self, outcome: PairOutcome, why: OutputError) -> None:
        super().__init__(str(why))
        self.outcome = outcome


def keep_outcome(folder: Path, outcome: PairOutcome) -> None:
    """Write ``pair.json``. UnkeptOutcome: it cannot be written; the error has the outcome."""
    try:
        write_document(folder / PAIR_FILE, outcome)
    except OutputError as error:
        raise UnkeptOutcome(outcome, error) from None


@contextmanager
def kept_files(out: Path | None) -> Iterator[Path]:
    """A directory for the recorded work and the workers' stderr.

    ``out`` keeps them, unless nothing came of the gate. Without it they are temporary; where a
    worker failed they stay, since the error names them. Raises UsageError where ``out`` cannot be
    written or holds something.
    """
    if out is not None:
        with _named(out) as directory:
            yield directory
        return
    directory = Path(tempfile.mkdtemp(prefix="cdbench-pair-"))
    keep = False
    try:
        yield directory
    except WorkerError:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _named(out: Path) -> Iterator[Path]:
    claimed = RunDirectory.create(str(out), "pair")
    try:
        yield claimed.path
        _drop_silent(claimed.path)
    except WorkerError:
        raise
    except BaseException:
        for name in (*LOGS, WORKLOAD_FILE, REQUESTS_FILE, PAIR_FILE):
            with suppress(OSError):
                (claimed.path / name).unlink(missing_ok=True)
        raise
    finally:
        claimed.close()


def _drop_silent(directory: Path) -> None:
    """Remove the logs of workers that said nothing."""
    for name in LOGS:
        path = directory / name
        if path.is_file() and not path.stat().st_size:
            path.unlink()
