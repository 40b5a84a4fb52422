"""Prompts as a person gives them: texts, or a file of token ids.

A line of an ids file is ``{"prompt": [ids], "force": [ids] | null, "max_new_tokens": n}``; the
last two may be left out. ``-`` stands for standard input. Everything wrong is a UsageError that
names the place. Whether ids fit a model is for the engine, which knows the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cdbench.errors import UsageError

STDIN = "-"
LINE_FORM = '{"prompt": [ids], "force": [ids] or null, "max_new_tokens": n}'


@dataclass(frozen=True)
class Prompt:
    """One prompt, as text or as ids. ``where`` is what an error calls it."""

    where: str
    text: str | None = None
    ids: tuple[int, ...] = ()
    force: tuple[int, ...] | None = None
    max_new_tokens: int | None = None


class _Line(BaseModel):
    """A line of an ids file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: list[int]
    force: list[int] | None = None
    max_new_tokens: int | None = Field(None, ge=1)


def text_prompts(texts: Sequence[str], stdin: IO[str] | None = None) -> list[Prompt]:
    """The prompts of ``--prompt``, in order; ``-`` is one prompt per line of standard input."""
    prompts: list[Prompt] = []
    for number, text in enumerate(texts, start=1):
        if text == STDIN:
            prompts += _stdin_texts(stdin or sys.stdin)
        elif not text.strip():
            raise UsageError(f"--prompt {number}: the prompt is empty; give at least one token")
        else:
            prompts.append(Prompt(f"--prompt {number}", text=text))
    return prompts


def read_ids_file(path: str, stdin: IO[str] | None = None) -> list[Prompt]:
    """The prompts of an ids file, in order."""
    where, text = _read(path, stdin or sys.stdin)
    prompts = [_ids_prompt(line, f"{where}:{number}") for number, line in _numbered(text)]
    if not prompts:
        raise UsageError(f"{where}: holds no prompt; write one {LINE_FORM} per line")
    return prompts


def _stdin_texts(stdin: IO[str]) -> list[Prompt]:
    where, text = _read(STDIN, stdin)
    prompts = [Prompt(f"{where}:{number}", text=line) for number, line in _numbered(text)]
    if not prompts:
        raise UsageError(f"{where}: holds no prompt; write one per line")
    return prompts


def _read(path: str, stdin: IO[str]) -> tuple[str, str]:
    """What to call the source, and its whole text."""
    where = "standard input" if path == STDIN else path
    try:
        return where, stdin.read() if path == STDIN else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{where}: {error.strerror or error}; give a file of prompts") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where}: no UTF-8 text; give a file of prompts") from None


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines that hold something, with their numbers.

    Only a line feed ends a line: a JSON string may hold the other separators as they are.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _ids_prompt(line: str, where: str) -> Prompt:
    try:
        read = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        # The parser saw one line; which one it was in the file is in `where`.
        message = first["msg"].replace(" at line 1 column", " at column")
        what = f"`{key}`: {message}" if key else message
        raise UsageError(f"{where}: {what}; expected {LINE_FORM}") from None
    force = None if read.force is None else tuple(read.force)
    return Prompt(where, None, tuple(read.prompt), force, read.max_new_tokens)
