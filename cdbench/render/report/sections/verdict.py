"""The verdict, before any number: whether the run may be used, and what it means in words."""

from __future__ import annotations

import re

from cdbench.render.report.parts import Facts, Part, Prose, Section, Verdict
from cdbench.render.report.source import ReportRun
from cdbench.render.run_report import exit_words, is_random, model_lines, signalled, work_lines
from cdbench.render.verdict import looks_line, sentences, validity_lines
from cdbench.schema import Result

ADAPTIVE = ("cdb", "lockstep")


def verdict(run: ReportRun) -> Section:
    """VALID or INVALID with its reasons, the plain sentences, and the static facts."""
    result = run.result
    valid = result.validity.verdict == "VALID"
    lines = tuple(validity_lines(result)[1:])
    parts: list[Part] = [Verdict(valid, lines)]
    if not valid:
        parts.append(Prose(("Quote no number of this run.",)))
    if result.status == "interrupted":
        parts.append(Prose(("The run was interrupted: only what was finished before is here.",)))
    if not result.modes:
        parts.append(Prose(("Nothing was measured before the interruption.",)))
    else:
        said = sentences(result)
        parts.append(Prose((*said, *([line] if (line := looks_line(result)) else ()))))
    parts.append(Facts(tuple(_fact(line) for line in _static_lines(result))))
    return Section("verdict", "Verdict", tuple(parts))


def marks(result: Result) -> list[str]:
    """What must stand beside every number of the run."""
    found: list[str] = [result.validity.verdict] if result.validity.verdict == "INVALID" else []
    if result.status == "interrupted":
        found.append("INTERRUPTED")
    if is_random(result):
        found.append("RANDOM WEIGHTS")
    if result.workload.synthetic:
        found.append("SYNTHETIC DEPTHS")
    if result.workload.replayed:
        found.append(f"replayed {', '.join(result.workload.replayed)}")
    return found


def _static_lines(result: Result) -> list[str]:
    lines = []
    if result.model is not None:
        settings = [mode.exit for mode in result.modes.values() if mode.schedule in ADAPTIVE]
        rule = exit_words(settings[0]) if settings else "no adaptive mode"
        lines += model_lines(result.model, result.manifest, rule)
    lines += work_lines(result.workload, signalled(result))
    return lines + [f"note  {note}" for note in result.workload.notes]


def _fact(line: str) -> tuple[str, str]:
    """``model     demo, …`` as name and content; a mark in capitals stays whole."""
    found = re.fullmatch(r"(\w+) {2,}(.*)|([A-Z]{3,}(?: [A-Z]{3,})*):? (.*)", line, re.DOTALL)
    if found is None:
        return "note", line
    return (found[1], found[2]) if found[1] else (found[3], found[4])
