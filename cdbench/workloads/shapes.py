"""What a row of a dataset asks, and what it answers: the shapes that are recognised.

    text      one column of text, or a template over several columns
    chat      a list of {role, content}: all up to the first answer, and that answer
    sharegpt  a list of {from, value}: the first human turn, and the reply to it
    alpaca    instruction, input, output
    ids       {"prompt": [ids]}, as `generate --ids-file` reads: not read here

``auto`` looks at the columns and at the first value that holds something in each, over the first
rows. A row that cannot be read as its dataset's shape gives None.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from cdbench import resources
from cdbench.errors import UsageError
from cdbench.workloads.columns import first_values, refuse_empty
from cdbench.workloads.dataset import Row, Rows

Format = Literal["auto", "text", "chat", "sharegpt", "alpaca", "ids"]

CHAT_COLUMNS = ("messages", "conversations", "conversation", "prompt")
TEXT_COLUMNS = ("prompt", "question", "text", "content", "article", "document", "input")
REFERENCE_COLUMNS = (
    *("completion", "response", "answer", "reference", "target", "output"),
    *("summary", "abstract", "highlights"),
)
ROLES = {
    **{name: "user" for name in ("user", "human")},
    **{name: "assistant" for name in ("assistant", "gpt", "model", "chatgpt", "bot")},
    "system": "system",
}


@dataclass(frozen=True)
class Message:
    """One turn; ``role`` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Exchange:
    """What is asked, as plain text or as the turns of a conversation, and the known answer."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    reference: str | None = None


Reader = Callable[[Row], Exchange | None]


@dataclass(frozen=True)
class ShapeSettings:
    """The keys of ``workload`` that say how a row is read."""

    format: Format = "auto"
    column: str | None = None
    reference_column: str | None = None
    template: str | None = None


def reader_for(rows: Rows, settings: ShapeSettings) -> tuple[Format, Reader]:
    """How the rows of a dataset are read. UsageError where nothing in them can be recognised."""
    named = {"column": settings.column, "reference_column": settings.reference_column}
    for key, column in named.items():
        if column is not None and column not in rows.columns:
            raise UsageError(
                f"workload.{key}: {rows.where} has no column {column!r}; "
                f"{resources.nearest_hint(column, rows.columns)}"
            )
    seen = first_values(rows)
    refuse_empty(rows, seen, named)
    shape = _recognised(seen, settings) if settings.format == "auto" else settings.format
    if shape == "text":
        return shape, _text_reader(rows, seen, settings)
    if settings.template is not None:
        raise UsageError(f"workload.template: means nothing for format {shape}; use text")
    if shape == "alpaca":
        return shape, _alpaca_reader(rows)
    column = settings.column or _chat_column(seen)
    if column is None:
        raise UsageError(
            f"workload.column: no column of {rows.where} holds turns; name it "
            f"(it has {', '.join(rows.columns)})"
        )
    return shape, _turns_reader(column, first_pair=shape == "sharegpt")


def _recognised(seen: Row, settings: ShapeSettings) -> Format:
    if settings.template is not None:
        return "text"
    column = settings.column or _chat_column(seen)
    if column is not None and (turns := _turns(seen[column])):
        return "sharegpt" if "from" in turns[0] else "chat"
    if settings.column is None and {"instruction", "output"} <= {*seen}:
        return "alpaca"
    return "text"


# Text.


def _text_reader(rows: Rows, seen: Row, settings: ShapeSettings) -> Reader:
    write = _template(rows, seen, settings)
    reference = settings.reference_column
    if reference is None:
        used = settings.column or _text_column(seen) if settings.template is None else None
        known = [name for name in REFERENCE_COLUMNS if name in rows.columns and name != used]
        reference = next((name for name in known if isinstance(seen[name], str)), None)

    def read(row: Row) -> Exchange | None:
        text = write(row)
        answer = None if reference is None else row[reference]
        if text is None or not text.strip():
            return None
        return Exchange(text=text, reference=None if answer is None else str(answer))

    return read


def _template(rows: Rows, seen: Row, settings: ShapeSettings) -> Callable[[Row], str | None]:
    """What writes a row's prompt: the template, else the one column of text."""
    if settings.template is not None:
        if settings.column is not None:
            raise UsageError("workload.column: means nothing beside workload.template; drop one")
        template = settings.template
        _check_template(template, rows)
        return lambda row: template.format_map({k: "" if v is None else v for k, v in row.items()})
    column = settings.column or _text_column(seen)
    if column is None:
        raise UsageError(
            f"workload.column: which column of {rows.where} holds the prompt is open; name it, or "
            f"write a workload.template (it has {', '.join(rows.columns)})"
        )
    if seen[column] is not None and not isinstance(seen[column], str):
        raise UsageError(
            f"workload.column: {column!r} of {rows.where} holds no text; name a column of text, "
            "or set workload.format"
        )
    return lambda row: row[column]


def _check_template(template: str, rows: Rows) -> None:
    """Only plain {column} fields: a template comes from a file and must not reach into objects."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise UsageError(f"workload.template: {error}; write {{column}}, {{{{ for {{") from None
    fields = [(name, spec, how) for _, name, spec, how in parts if name is not None]
    if not fields:
        raise UsageError("workload.template: names no column; write {column} where its text goes")
    for name, spec, how in fields:
        if spec or how or name not in rows.columns:
            raise UsageError(
                f"workload.template: {{{name}}} is no column of {rows.where}; "
                f"{resources.nearest_hint(name, rows.columns)}"
            )


def _text_column(seen: Row) -> str | None:
    """The column of text by its name, else the only one; None where it is open."""
    of_text = [name for name, value in seen.items() if isinstance(value, str)]
    named = [name for name in TEXT_COLUMNS if name in of_text]
    if named:
        return named[0]
    return of_text[0] if len(of_text) == 1 else None


# Conversations.


def _alpaca_reader(rows: Rows) -> Reader:
    missing = [name for name in ("instruction", "output") if name not in rows.columns]
    if missing:
        raise UsageError(
            f"workload.format: alpaca needs a column {missing[0]!r}; {rows.where} has "
            f"{', '.join(rows.columns)}"
        )

    def read(row: Row) -> Exchange | None:
        asked, given = row["instruction"], row.get("input")
        if not isinstance(asked, str) or not asked.strip():
            return None
        if isinstance(given, str) and given.strip():
            asked = f"{asked}\n\n{given}"
        answer = row["output"]
        return Exchange(
            messages=(Message("user", asked),),
            reference=answer if isinstance(answer, str) else None,
        )

    return read


def _chat_column(seen: Row) -> str | None:
    found = [c for c in CHAT_COLUMNS if _turns(seen.get(c))]
    return found[0] if found else None


def _turns(value: Any) -> list[Row]:
    """A list of turns, whichever way round the library holds it; empty where it is none."""
    if isinstance(value, dict) and all(isinstance(column, list) for column in value.values()):
        value = [
            dict(zip(value, turn, strict=False)) for turn in zip(*value.values(), strict=False)
        ]
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return []
    return value if {"from", "value"} <= {*value[0]} or {"role", "content"} <= {*value[0]} else []


def _turns_reader(column: str, first_pair: bool) -> Reader:
    def read(row: Row) -> Exchange | None:
        messages = _messages(_turns(row[column]))
        if messages is None:
            return None
        return _first_pair(messages) if first_pair else _first_answer(messages)

    return read


def _messages(turns: Sequence[Row]) -> list[Message] | None:
    """None where a turn's speaker is unknown or it holds no text."""
    messages = []
    for turn in turns:
        role = ROLES.get(str(turn.get("role", turn.get("from"))))
        content = turn.get("content", turn.get("value"))
        if role is None or not isinstance(content, str) or not content.strip():
            return None
        messages.append(Message(role, content))
    return messages


def _first_pair(messages: list[Message]) -> Exchange | None:
    """The first human turn, if a reply follows it at once."""
    for asked, reply in pairwise(messages):
        if asked.role == "user":
            return Exchange(None, (asked,), reply.content) if reply.role == "assistant" else None
    return None


def _first_answer(messages: list[Message]) -> Exchange | None:
    """All turns up to the first answer, which must follow a user's turn."""
    roles = [message.role for message in messages]
    end = roles.index("assistant") if "assistant" in roles else len(roles)
    if end == 0 or roles[end - 1] != "user":
        return None
    reference = messages[end].content if end < len(messages) else None
    return Exchange(None, tuple(messages[:end]), reference)
