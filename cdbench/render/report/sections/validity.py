"""What was checked, and what the machine did meanwhile."""

from __future__ import annotations

from cdbench.render.machine_report import machine_table
from cdbench.render.report.parts import Part, Points, Prose, Section, tables
from cdbench.render.report.source import ReportRun
from cdbench.render.verdict import looks_line, validity_lines

CHECKED = (
    "A run is INVALID where a request failed, modes did unequal work, blocks or samples were too "
    "few for what is shown, other processes or throttling disturbed it, code changed while it ran, "
    "or an identity between tokens, depths and launches failed."
)


def validity(run: ReportRun) -> Section:
    """The verdict's reasons once more, beside the machine's own figures."""
    result = run.result
    parts: list[Part] = [
        Prose((CHECKED,), muted=True),
        Points(tuple(line.removeprefix("- ") for line in validity_lines(result))),
    ]
    if line := looks_line(result):
        parts.append(Prose((line,)))
    machine = tables(machine_table(result))
    parts += machine or (Prose(("The machine was not watched in this run.",)),)
    return Section("validity", "Validity", tuple(parts))
