"""Text broken between words, and never inside a number or an interval.

``1.27× [1.14, 1.42]``, ``-0.3 pt [-0.9, +0.3]`` and ``95 %`` are read as one thing, so they stay on
one line: half of an interval at the end of a line is easily taken for the whole.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

_GLUE = "\u00a0"
"""Stands for a blank at which no line may end; ``textwrap`` does not break there."""

_UNITS = r"(?:%|×|[ mµun]?s|[kMGTP]?B|pt|GFLOP/s)(?!\w)"
_NUMBER = re.compile(r"[(\[]?[-+]?\d")
_INTERVAL = re.compile(r"\[[-+]?\d[^\[\]]*\]")
_BEFORE_UNIT = re.compile(rf"(?<=\d) (?={_UNITS})")
_BEFORE_INTERVAL = re.compile(rf"(\d(?:{_GLUE}?{_UNITS})?) (?=\[[-+]?\d)")


def wrap(content: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most ``width`` columns; wider only where one word or number is.

    ``indent`` starts every line but the first. Line breaks in ``content`` stay.
    """
    lines = []
    for line in glued(content).split("\n"):
        lines += textwrap.wrap(
            line,
            max(1, width),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return [line.replace(_GLUE, " ") for line in lines]


def squeeze(lines: Iterable[str], width: int) -> Iterator[str]:
    """The lines, words that are still too wide broken anywhere; one with a number stays whole."""
    for line in lines:
        if len(line) <= width or any(_NUMBER.match(word) for word in line.split()):
            yield line
            continue
        yield from (line[at : at + width] for at in range(0, len(line), width))


def longest_word(content: str) -> int:
    """Columns that the widest unbreakable part of the text takes."""
    return max((len(word) for word in re.split(r"[ \n]", glued(content))), default=0)


def glued(content: str) -> str:
    """The text with the blanks that must not become line breaks replaced."""
    inside = _INTERVAL.sub(lambda found: found[0].replace(" ", _GLUE), content)
    with_units = _BEFORE_UNIT.sub(_GLUE, inside)
    return _BEFORE_INTERVAL.sub(rf"\1{_GLUE}", with_units)
