"""Where a gate's receipt goes: files that were asked for, and what a workflow's runner offers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cdbench.bench.places import prove_writable
from cdbench.bench.run_files import is_run_file
from cdbench.compare.outputs.annotations import annotations_wanted, workflow_commands
from cdbench.compare.outputs.junit import to_junit
from cdbench.compare.outputs.markdown import to_markdown
from cdbench.errors import OutputError, UsageError
from cdbench.schema.files import output_errors, write_document, write_whole
from cdbench.schema.gating import GateReceipt

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
"""Names a file whose Markdown a workflow's page shows below the step."""


def prove_outputs(
    junit: Path | None,
    summary: Path | None,
    receipt_file: Path | None,
    environ: Mapping[str, str] = os.environ,
    keep: Sequence[Path] = (),
) -> None:
    """Refuse what could not be written, before anything is judged; nothing is left behind.

    ``keep``: files that are read, and so must not be written over.

    Raises:
        UsageError: a place cannot be written, is named twice, is one of ``keep``, or has the name
            of a run's own file.
    """
    taken: dict[Path, str] = {path.resolve(): "a file that is read here" for path in keep}
    named = (("--junit", junit), ("--summary", summary), ("--receipt", receipt_file))
    for flag, path in named:
        if path is None:
            continue
        place = path.resolve()
        if place in taken:
            raise UsageError(f"{flag} {path}: is {taken[place]} too; name another file")
        if is_run_file(place):
            raise UsageError(
                f"{flag} {path}: is what a run wrote, so it is not replaced; name another file"
            )
        taken[place] = f"the file of {flag}"
        prove_writable(path, flag)
    if (step := _step_summary(environ)) is not None:
        _prove_appendable(step)


def write_outputs(
    receipt: GateReceipt,
    junit: Path | None,
    summary: Path | None,
    receipt_file: Path | None,
    environ: Mapping[str, str],
) -> None:
    """Write every file that was asked for, whole; append to the step's summary; annotate.

    Raises:
        OutputError: a file can no longer be written; everything else has been.
    """
    page = to_markdown(receipt)
    unwritten: list[OutputError] = []

    def write(done: Callable[[], None]) -> None:
        try:
            done()
        except OutputError as error:
            unwritten.append(error)

    if receipt_file is not None:
        write(lambda: write_document(receipt_file, receipt))
    if junit is not None:
        write(lambda: write_whole(junit, to_junit(receipt)))
    if summary is not None:
        write(lambda: write_whole(summary, page))
    write(lambda: append_step_summary(page, environ))
    if annotations_wanted(environ):
        for line in workflow_commands(receipt):
            print(line, file=sys.stderr)
    for error in unwritten:
        raise error


def append_step_summary(page: str, environ: Mapping[str, str]) -> None:
    """Append Markdown to ``$GITHUB_STEP_SUMMARY``, all or nothing; nothing where it is not set.

    Raises:
        OutputError: the file cannot be written.
    """
    path = _step_summary(environ)
    if path is None:
        return
    content = page.encode()
    with output_errors(path), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        # A heading that another step's last line runs into would be none.
        left = memoryview(b"\n" + content if size else content)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def _step_summary(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(STEP_SUMMARY)
    return Path(named) if named else None


def _prove_appendable(path: Path) -> None:
    new = not os.path.lexists(path)
    try:
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{STEP_SUMMARY} {path}: cannot be written ({reason}); unset it, or name another file"
        ) from None
