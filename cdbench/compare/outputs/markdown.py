"""A gate's receipt as Markdown: a summary of a workflow's step, or a comment on a pull request.

The verdict comes first, then what must be known of the run, the checks that do not hold, those that
do (folded away where there are many), what differs, and the plain last lines. A comment takes
65,536 characters, so what is too long is shortened evenly and says by how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cdbench.render.compare_report import EFFECTS
from cdbench.render.gate_report import ORDER, gate_table
from cdbench.render.markdown import plain as plain_markdown
from cdbench.render.markdown import to_markdown as table_markdown
from cdbench.render.table import Column, Row, Table, text
from cdbench.schema.comparing import SideRecord
from cdbench.schema.gating import GateCheck, GateReceipt

MOST_BYTES = 60_000
"""Room is left for what a workflow writes around it."""
MANY = 8
"""Checks that hold are folded away where there are more than this."""
ITEMS = (1000, 200, 50, 12, 3)
"""Most rows of a table and lines of a list: the first that keeps the whole short enough."""
MOST_CHARACTERS = 300
"""Of one text."""
RATIO = "as good as"
"""The column of the table that only timed checks fill."""


def to_markdown(receipt: GateReceipt) -> str:
    """The whole summary, ending with a newline."""
    page = ""
    for most in ITEMS:
        page = "\n\n".join(_parts(receipt, most)) + "\n"
        if len(page.encode()) <= MOST_BYTES:
            break
    return page


def plain(words: str) -> str:
    """A text on one line, and no long one, that means nothing to Markdown or HTML."""
    escaped = plain_markdown(_short(words))
    if escaped.startswith("["):  # what follows `]:` would be where a link of that name leads
        escaped = f"&#91;{escaped[1:]}"
    return escaped


def _short(words: str) -> str:
    words = words[: 4 * MOST_CHARACTERS]
    line = "".join(c for c in " ".join(words.split()) if c.isprintable())
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 1] + "…"


def _parts(receipt: GateReceipt, most: int) -> Iterator[str]:
    yield f"## cdbench gate {plain(receipt.gate)}: {receipt.verdict}"
    yield _counts(receipt.checks)
    yield "\n".join(_facts(receipt, most))
    failing = [check for check in receipt.checks if check.verdict != "PASS"]
    passing = [check for check in receipt.checks if check.verdict == "PASS"]
    if failing:
        yield _checks(receipt, failing, most)
    if len(passing) > MANY:
        heading = f"<details><summary>{len(passing)} checks hold</summary>"
        yield f"{heading}\n\n{_checks(receipt, passing, most)}\n\n</details>"
    elif passing:
        yield _checks(receipt, passing, most)
    if receipt.looks:
        yield table_markdown(_looks(receipt)).strip()
    if receipt.differences:
        differs = [
            f"{d.what}: {d.base} → {d.run} ({EFFECTS[d.effect]})" for d in receipt.differences
        ]
        yield "What differs between the two sides:\n\n" + _bullets(differs, most)
    if receipt.notes:
        yield _bullets(receipt.notes, most)
    yield _bullets(receipt.sentences, min(most, ITEMS[-2]))


def _counts(checks: Sequence[GateCheck]) -> str:
    """``1 FAIL, 62 PASS``, the worst first."""
    return f"Checks: {_standing([check.verdict for check in checks]) or 'none'}."


def _facts(receipt: GateReceipt, most: int) -> Iterator[str]:
    yield from _side("run", receipt.run, most)
    if receipt.base is not None:
        yield from _side("base", receipt.base, most)
    for kind, file in receipt.baselines.items():
        yield f"- {kind} baseline: {plain(file)}"
    yield f"- gate file: sha256 {plain(receipt.gate_sha256[:12])}"


def _side(role: str, side: SideRecord, most: int) -> Iterator[str]:
    blocks = f"{side.blocks} block{'' if side.blocks == 1 else 's'}"
    facts = [side.started_utc[:16], side.model or "no model", blocks, side.verdict]
    yield f"- {role}: {plain(side.name)} ({', '.join(map(plain, facts))})"
    said = [*side.marks, *(f"INVALID: {reason}" for reason in side.reasons)]
    yield from (f"  - **{plain(mark)}**" for mark in said[:most])
    if len(said) > most:
        yield f"  - and {len(said) - most} more"


def _checks(receipt: GateReceipt, checks: Sequence[GateCheck], most: int) -> str:
    """The table that a terminal shows too, its texts made short."""
    shown = [
        check.model_copy(update={"name": _short(check.name), "why": _short(check.why)})
        for check in sorted(checks, key=lambda check: ORDER.index(check.verdict))[:most]
    ]
    part = receipt.model_copy(update={"checks": shown, "notes": []})
    table = replace(gate_table(part, full=True), title=None)
    if all(check.ratio is None for check in shown):
        kept = [i for i, c in enumerate(table.columns) if c.title != RATIO]
        table = table.select(tuple(kept))
    if len(checks) > most:
        table = replace(table, notes=(f"and {len(checks) - most} more: see the receipt.",))
    return table_markdown(table).strip()


def _looks(receipt: GateReceipt) -> Table:
    """A row a look: how the checks stood after so many pairs."""
    columns = (Column("pairs"), Column("verdicts at this look", align="left"))
    rows = tuple(
        Row((text(str(look.pairs)), text(_standing(list(look.verdicts.values())))))
        for look in receipt.looks
    )
    return Table(columns, rows)


def _standing(verdicts: Sequence[str]) -> str:
    found = Counter(verdicts)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in ORDER if found[verdict])


def _bullets(lines: Sequence[str], most: int) -> str:
    left = len(lines) - most
    shown = [*map(plain, lines[:most]), *([f"and {left} more"] if left > 0 else [])]
    return "\n".join(f"- {line}" for line in shown)
