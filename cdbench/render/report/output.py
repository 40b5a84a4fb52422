"""Where page and pictures go: proved before anything is read at length, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdbench.bench.places import claim_directory, claim_file, typed_path
from cdbench.errors import UsageError
from cdbench.render.report.document import Report
from cdbench.render.report.page import is_report, report_html
from cdbench.render.report.parts import Plot, plots_of
from cdbench.render.report.plots.files import FORMATS, file_stem, is_picture, picture
from cdbench.render.report.source import directory_of
from cdbench.schema.files import write_whole

REPORT_FILE = "report.html"
ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class ReportOutput:
    """The page to write; the directory of pictures and their formats, where they were asked for."""

    page: Path
    pictures: Path | None
    formats: tuple[str, ...]


@contextlib.contextmanager
def claimed_output(
    runs: Sequence[str], out: str | None, plots: str | None, formats: str | None
) -> Iterator[ReportOutput]:
    """The places, writable and this process's alone in the block.

    ``out`` None: ``report.html`` in the directory of the one run.

    Raises:
        UsageError: several runs without ``out``, a format that is none, something else is there,
        another process writes there, or a place cannot be written.
    """
    page, endings = _page(runs, out), _formats(formats, plots)
    with contextlib.ExitStack() as held:
        held.enter_context(claim_file(page, "--out"))
        if page.exists() and not is_report(page):
            raise UsageError(
                f"--out {page}: is no report of cdbench, so it is not replaced; name another file"
            )
        directory = None
        if plots is not None:
            directory = typed_path(plots, "--plots")
            held.enter_context(claim_directory(directory, "--plots"))
        yield ReportOutput(page, directory, endings)


def write_report(report: Report, output: ReportOutput) -> list[Path]:
    """Write the pictures, then the page, each whole or not at all; answer the pictures' paths.

    Everything is made before the first file is written.

    Raises:
        UsageError: a picture's place has another file.
        OutputError: one cannot be written.
    """
    made = list(_pictures(report, output))
    for path, _ in made:
        if path.exists() and not is_picture(path):
            raise UsageError(
                f"--plots {path}: is no picture of a report, so it is not replaced; name another "
                "directory"
            )
    page = report_html(report)
    contents = [(path, draw()) for path, draw in made]
    for path, content in contents:
        write_whole(path, content)
    write_whole(output.page, page)
    return [path for path, _ in made]


def _pictures(report: Report, output: ReportOutput) -> Iterator[tuple[Path, Callable[[], bytes]]]:
    """Where every picture goes, and what makes it."""
    if output.pictures is None:
        return
    several = len(report.chapters) > 1
    for chapter in report.chapters:
        start = f"{chapter.run.key}-{file_stem(chapter.run.name)}-" if several else ""
        for plot in chapter.plots:
            for ending in output.formats:
                path = output.pictures / f"{start}{plot.name}.{ending}"
                yield path, _drawn(plot, ending, "; ".join(chapter.marks))
    if report.strip is not None:
        for plot in plots_of(report.strip.parts):
            for ending in output.formats:
                yield output.pictures / f"{plot.name}.{ending}", _drawn(plot, ending, "")


def _drawn(plot: Plot, ending: str, marks: str) -> Callable[[], bytes]:
    return lambda: picture(plot, ending, marks)


def _page(runs: Sequence[str], out: str | None) -> Path:
    if out is None and len(runs) > 1:
        raise UsageError(f"report of {len(runs)} runs: it belongs to none of them; add --out FILE")
    path = directory_of(runs[0]) / REPORT_FILE if out is None else typed_path(out, "--out")
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"--out {path}: is no name of a page; end it in {' or '.join(ENDINGS)}")
    return path


def _formats(text: str | None, plots: str | None) -> tuple[str, ...]:
    if text is None:
        return FORMATS
    if plots is None:
        raise UsageError(f"--plot-format {text}: no picture is written; add --plots DIR")
    given = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    for name in given:
        if name not in FORMATS:
            raise UsageError(
                f"--plot-format {text}: {name or 'nothing'} is no format; choose from "
                f"{', '.join(FORMATS)}"
            )
    return given
