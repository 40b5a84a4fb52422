"""Single questions of a stored run: what was asked, what each mode answered, how deep it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from cdbench.bench.stored_samples import Changed, StoredSamples
from cdbench.render.continuation import Decode, Printer, id_pieces, one_line, text_pieces
from cdbench.render.formats import Kind
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.terminal import print_lines
from cdbench.schema import AnswerRecord, SampleRecord
from cdbench.stats.agreement import parting

DecodeOf = Callable[[str], Decode | None]
"""A mode's way from token ids to text; None where its model has none here."""


def print_question(
    samples: Sequence[SampleRecord], console: Console, max_loops: int, decode_of: DecodeOf
) -> None:
    """One question: its prompt and target, then each mode's answer coloured by depth."""
    first = samples[0]
    printer = Printer(console, max_loops)
    print_lines(console, f"{first.task}, document {first.doc_id}", "", first.prompt, "")
    print_lines(console, f"target: {one_line(first.target)}")
    printer.heading(())
    for sample in samples:
        print_lines(console, "", f"{sample.mode}: {_judged(sample)}")
        decode = decode_of(sample.mode)
        for number, answer in enumerate(sample.answers):
            if answer.kind != "generated":
                print_lines(console, f"- {_scored(number, answer)}")
            _print_tokens(answer, printer, decode)
    for line in _partings(samples):
        print_lines(console, "", line)


def question_table(stored: StoredSamples, task: str) -> Table:
    """A task's questions: the value each mode has, and how many changed."""
    modes = stored.modes
    by_doc: dict[int, dict[str, SampleRecord]] = {}
    for sample in stored.of_task(task):
        by_doc.setdefault(sample.doc_id, {})[sample.mode] = sample
    columns = (
        Column("doc", align="right"),
        Column("target", align="left", priority=1),
        *(Column(mode, direction="up") for mode in modes),
    )
    rows = tuple(
        Row(
            (
                Cell(doc_id, Kind.COUNT),
                text(one_line(next(iter(found.values())).target)),
                *(Cell(found[m].value) if m in found else text("-") for m in modes),
            )
        )
        for doc_id, found in sorted(by_doc.items())
    )
    metric = next(iter(by_doc[next(iter(by_doc))].values())).primary.replace(",", ", ")
    return Table(columns, rows, f"{task}: {metric}, question by question")


def changed_table(changed: Sequence[Changed], mode: str, against: str) -> Table:
    """The questions whose value the mode changed, with where the texts part."""
    columns = (
        Column("task", align="left"),
        Column("doc", align="right"),
        Column(against, direction="up"),
        Column(mode, direction="up"),
        Column("parts at", "token", priority=1),
        Column("mean depth", "loops", priority=2),
        Column("target", align="left", priority=3),
    )
    rows = tuple(
        Row(
            (
                text(one.ours.task),
                Cell(one.ours.doc_id, Kind.COUNT),
                Cell(one.theirs.value),
                Cell(one.ours.value),
                _parting_cell(one.theirs, one.ours),
                Cell(_mean_depth(one.ours)),
                text(one_line(one.ours.target)),
            )
        )
        for one in changed
    )
    known = [(c.theirs.value, c.ours.value) for c in changed]
    lost = sum(b is not None and v is not None and v < b for b, v in known)
    gained = sum(b is not None and v is not None and v > b for b, v in known)
    notes = (
        f"{len(changed)} question{'' if len(changed) == 1 else 's'} changed from {against} to "
        f"{mode}: {lost} lower, {gained} higher.",
    )
    return Table(columns, rows, f"what {mode} changed", notes)


def _judged(sample: SampleRecord) -> str:
    """The value, what the filter read, and what a reader must know of the answers."""
    metric = sample.primary.partition(",")[0]
    words = {1.0: "right", 0.0: "wrong"}
    value = "no value" if sample.value is None else words.get(sample.value, f"{sample.value:g}")
    said = [f"{value} ({metric})"]
    if sample.answers[0].kind == "generated":
        left = sample.read_as
        said.append(f"read as {one_line(left[0] if isinstance(left, list) and left else left)}")
    for word, holds in (
        ("capped", any(a.capped for a in sample.answers)),
        ("its prompt lost its beginning", any(a.cut_tokens for a in sample.answers)),
        ("failed", sample.failed),
    ):
        if holds:
            said.append(word)
    return ", ".join(said)


def _scored(number: int, answer: AnswerRecord) -> str:
    if answer.error is not None:
        return f"choice {number}: {answer.error}"
    greedy = ", greedy" if answer.greedy else ""
    shown = "n/a" if answer.logprob is None else f"{answer.logprob:.3f} nats"
    words = "" if answer.text is None else f" {one_line(answer.text)}"
    return f"choice {number}:{words} ({shown}{greedy})"


def _print_tokens(answer: AnswerRecord, printer: Printer, decode: Decode | None) -> None:
    for piece in answer.pieces:
        if decode is None:
            pieces = id_pieces(piece.tokens)
        else:
            pieces = text_pieces(piece.tokens, decode, decode(piece.tokens))
        printer.tokens(pieces, piece.executed_depths)


def _partings(samples: Sequence[SampleRecord]) -> Iterator[str]:
    """Where each further text leaves the first one."""
    first, *others = samples
    for other in others:
        if first.answers[0].kind == "generated" and other.answers[0].kind == "generated":
            at = parting(first.answers[0].tokens, other.answers[0].tokens)
            if at is None:
                yield f"{other.mode} has the same tokens as {first.mode}."
            else:
                yield f"{other.mode} parts from {first.mode} at token {at} (from 0)."


def _parting_cell(one: SampleRecord, other: SampleRecord) -> Cell:
    if one.answers[0].kind != "generated":
        return text("-")
    at = parting(one.answers[0].tokens, other.answers[0].tokens)
    return text("-") if at is None else Cell(at, Kind.COUNT)


def _mean_depth(sample: SampleRecord) -> float | None:
    depths = sample.eligible_depths
    return sum(depths) / len(depths) if depths else None
