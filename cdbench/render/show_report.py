"""Single questions of a stored run: what was asked, what each mode answered, how deep it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from cdbench.bench.stored_samples import Changed, StoredSamples
from cdbench.render.continuation import Decode, Printer, id_pieces, one_line, text_pieces
from cdbench.render.formats import UNDEFINED, Kind
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
            if (heading := _heading(sample, number)) is not None:
                print_lines(console, f"- {heading}")
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
    samples = stored.of_task(task)
    has_values = any(sample.value is not None for sample in samples)
    figure = _value if has_values else _logprob
    rows = tuple(
        Row(
            (
                Cell(doc_id, Kind.COUNT),
                text(one_line(next(iter(found.values())).target)),
                *(Cell(figure(found[m])) if m in found else text("-") for m in modes),
            )
        )
        for doc_id, found in sorted(by_doc.items())
    )
    metric = samples[0].primary.replace(",", ", ")
    if has_values or all(_logprob(sample) is None for sample in samples):
        return Table(columns, rows, f"{task}: {metric}, question by question")
    notes = (f"{metric} is made of all questions together; the logprob of each is in nats.",)
    return Table(columns, rows, f"{task}: logprob, question by question", notes)


def _value(sample: SampleRecord) -> float | None:
    return sample.value


def _logprob(sample: SampleRecord) -> float | None:
    """How likely the one text of a question is, in nats."""
    return sample.answers[0].logprob if len(sample.answers) == 1 else None


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
    said = [f"{_value_words(sample)} ({metric})"]
    if sample.answers[0].kind == "generated":
        left = sample.read_as
        read = left if isinstance(left, list) and left else [left]
        said.append(f"read as {' | '.join(map(one_line, read))}")
    for word, holds in (
        ("capped", any(a.capped for a in sample.answers)),
        ("its prompt lost its beginning", any(a.cut_tokens for a in sample.answers)),
        ("failed", sample.failed),
    ):
        if holds:
            said.append(word)
    return ", ".join(said)


def _value_words(sample: SampleRecord) -> str:
    if sample.value is not None:
        return {1.0: "right", 0.0: "wrong"}.get(sample.value, f"{sample.value:g}")
    if sample.metrics.get(sample.primary) is not None:
        return "no value of its own: its metric is made of all questions"
    return "no value"


def _heading(sample: SampleRecord, number: int) -> str | None:
    """What stands above one answer; None above the only text of a question."""
    answer = sample.answers[number]
    if answer.kind == "generated":
        count = len(sample.answers)
        return f"repeat {number + 1} of {count}:" if count > 1 else None
    name = _request_name(sample, number)
    if answer.error is not None:
        return f"{name}: {answer.error}"
    greedy = ", greedy" if answer.greedy else ""
    shown = UNDEFINED if answer.logprob is None else f"{answer.logprob:.3f} nats"
    words = "" if answer.text is None else f" {one_line(answer.text)}"
    return f"{name}:{words} ({shown}{greedy})"


def _request_name(sample: SampleRecord, number: int) -> str:
    """What one of a question's scored requests is to the question."""
    if sample.answers[number].kind == "rolled":
        return "the whole text"
    if len(sample.answers) == 1:
        return "continuation"
    choices = len(sample.answers) // (2 if _asks_alone(sample) else 1)
    alone = "" if number < choices else " without its prompt"
    return f"choice {number % choices}{alone}"


def _asks_alone(sample: SampleRecord) -> bool:
    """Whether every choice was scored a second time, in the same order, with nothing before it."""
    first, last = sample.answers[0], sample.answers[-1]
    by_metric = any(name.partition(",")[0] == "acc_mutual_info" for name in sample.metrics)
    return by_metric or (last.empty_prompt and not first.empty_prompt)


def _print_tokens(answer: AnswerRecord, printer: Printer, decode: Decode | None) -> None:
    for piece in answer.pieces:
        if decode is None:
            pieces = id_pieces(piece.tokens)
        else:
            pieces = text_pieces(piece.tokens, decode, decode(piece.tokens))
        printer.tokens(pieces, piece.executed_depths)


def _partings(samples: Sequence[SampleRecord]) -> Iterator[str]:
    """Where the texts of each further mode leave those of the first, repeat by repeat."""
    first, *others = samples
    for other in others:
        places = _partings_of(first, other)
        for number, at in enumerate(places, start=1):
            where = f"repeat {number}: " if len(places) > 1 else ""
            if at is None:
                yield f"{where}{other.mode} has the same tokens as {first.mode}."
            else:
                yield f"{where}{other.mode} parts from {first.mode} at token {at} (from 0)."


def _partings_of(one: SampleRecord, other: SampleRecord) -> list[int | None]:
    """For each text of both where it parts; None where it has the same tokens."""
    return [parting(a, b) for a, b in zip(one.texts, other.texts, strict=False)]


def _parting_cell(one: SampleRecord, other: SampleRecord) -> Cell:
    """Where the texts part, of several repeats where the first of them does."""
    places = [at for at in _partings_of(one, other) if at is not None]
    return Cell(min(places), Kind.COUNT) if places else text("-")


def _mean_depth(sample: SampleRecord) -> float | None:
    depths = sample.eligible_depths
    return sum(depths) / len(depths) if depths else None
