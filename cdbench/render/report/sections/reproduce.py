"""The command that made the run, to copy."""

from __future__ import annotations

import shlex

from cdbench.render.report.parts import Listing, Part, Prose, Section
from cdbench.render.report.source import ReportRun


def reproduce(run: ReportRun) -> Section:
    """As it was typed, and how to repeat it from the run directory."""
    command = run.result.manifest.command
    parts: list[Part] = []
    if command:
        parts.append(Listing("as it was typed", shlex.join(command)))
    directory = shlex.quote(run.name)
    parts.append(Listing("from its directory", f"cdbench run --from {directory}"))
    words = (
        "The second command takes over the recorded configuration, and says what of code, packages "
        "and machine differs; cdbench recheck makes the summaries again from the raw records."
    )
    parts.append(Prose((words,), muted=True))
    return Section("reproduce", "Command to reproduce", tuple(parts))
