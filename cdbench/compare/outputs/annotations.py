"""A gate's receipt as workflow commands, which GitHub shows beside a pull request's changes.

A runner reads lines such as ``::error title=TITLE::MESSAGE`` from what a step prints. It shows ten
errors, ten warnings and ten notices of a step, and drops the others without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cdbench.render.formats import visible
from cdbench.schema.gating import GateCheck, GateReceipt

MOST = 10
"""Annotations of one level that a runner keeps of a step."""
MOST_CHARACTERS = 2000
"""Of a message: what is longer is nothing that one reads in a margin."""
LEVELS = ("error", "warning", "notice")


def workflow_commands(receipt: GateReceipt) -> list[str]:
    """One command for every check that does not hold, mark and note, and one for the verdict."""
    found: dict[str, list[str]] = {level: [] for level in LEVELS}
    for check in receipt.checks:
        if check.verdict != "PASS":
            found[_level(receipt, check)].append(_command(receipt, check.why, check.name))
    for level, mark in _marks(receipt):
        found[level].append(_command(receipt, mark))
    found["warning"] += [_command(receipt, note) for note in receipt.notes]
    if receipt.verdict == "PASS":
        found["notice"] += [_command(receipt, sentence) for sentence in receipt.sentences]
    return [line for level in LEVELS for line in _kept(receipt, level, found[level])]


def annotations_wanted(environ: Mapping[str, str]) -> bool:
    """Whether this runs where the commands are read; anywhere else they are noise."""
    return environ.get("GITHUB_ACTIONS") == "true"


def _marks(receipt: GateReceipt) -> Iterator[tuple[str, str]]:
    """Level and text of what must be known of either side; replay is how fair runs are made."""
    for side in (receipt.run, receipt.base):
        if side is None:
            continue
        yield from (("warning", f"{side.name}: INVALID: {reason}") for reason in side.reasons)
        for mark in side.marks:
            level = "notice" if mark.startswith("replayed") else "warning"
            yield level, f"{side.name}: {mark}"


def _level(receipt: GateReceipt, check: GateCheck) -> str:
    if check.verdict == "INCONCLUSIVE":
        stops = receipt.verdict == "INCONCLUSIVE" and receipt.exit_code != 0
        return "error" if stops else "warning"
    return "error"


def _kept(receipt: GateReceipt, level: str, commands: list[str]) -> Iterator[str]:
    """As many as are shown; where more were said, the last of them says how many."""
    kept = commands if len(commands) <= MOST else commands[: MOST - 1]
    if len(kept) < len(commands):
        left = len(commands) - len(kept)
        kept = [*kept, _command(receipt, f"and {left} more: see the summary or the receipt")]
    for command in kept:
        yield f"::{level} {command}"


def _command(receipt: GateReceipt, message: str, check: str = "") -> str:
    """Everything after the level, escaped as the runner's toolkit escapes it."""
    title = f"cdbench gate {receipt.gate}" + (f", {check}" if check else "")
    return f"title={_property(title)}::{_data(message[:MOST_CHARACTERS])}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
