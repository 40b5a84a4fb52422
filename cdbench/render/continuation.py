"""Continuations in a terminal: every token in the colour of its depth.

Without colour (a pipe, NO_COLOR) the depth stands behind each token instead: ``seven·2`` left after
two loops. A pipe gets one line per continuation whatever its length; a terminal, or a pipe with
COLUMNS set, gets lines that fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from cdbench.render.formats import UNDEFINED, for_encoding

_SCALE = ("bright_blue", "cyan", "green", "yellow", "magenta", "red")
"""From shallow to deep, in the terminal's own colours."""

_WINDOW = 8
"""Tokens decoded together: a token's text depends on its neighbours, but not on distant ones."""

_UNFINISHED = "\ufffd"

Decode = Callable[[list[int]], str]


@dataclass(frozen=True)
class Continuation:
    """One finished request, as it is shown. ``pieces`` align with ``depths`` as far as they go."""

    index: int
    prompt: str
    pieces: Sequence[str]
    depths: Sequence[int]
    finish_reason: str
    error: str | None = None

    @property
    def mean_depth(self) -> float | None:
        """Over later tokens: the first is read from the prompt, at full depth."""
        later = self.depths[1:]
        return sum(later) / len(later) if later else None


def id_pieces(tokens: Sequence[int]) -> list[str]:
    """Token ids, for a model without a tokenizer."""
    return [str(token) if i == 0 else f" {token}" for i, token in enumerate(tokens)]


def text_pieces(tokens: Sequence[int], decode: Decode, text: str) -> list[str]:
    """Each token's own part of ``text``, up to where a stop string cut it.

    A token without text of its own (a special one, part of a character) is ``<id>``.
    """
    limit = len(text.rstrip()) if decode(list(tokens)) != text else None
    parts: list[str] = []
    start, before, length = 0, "", 0
    for end, token in enumerate(tokens, start=1):
        if limit is not None and length >= limit:
            break
        now = decode(list(tokens[start:end]))
        added = now[len(before) :]
        if not added or now.endswith(_UNFINISHED):
            parts.append(f"<{token}>")
            continue
        parts.append(added if limit is None else added[: limit - length])
        length += len(added)
        before = now
        if end - start >= _WINDOW:
            start = end - 1
            before = decode(list(tokens[start:end]))
    return parts


class Printer:
    """Prints a batch as it ends: a legend once, then one continuation after another."""

    def __init__(self, console: Console, max_loops: int) -> None:
        self._console = console
        self._max_loops = max_loops
        self._coloured = console.color_system is not None
        self._folds = console.is_terminal or bool(os.environ.get("COLUMNS"))

    def heading(self, lines: Sequence[str]) -> None:
        """What runs and what marks it, then how depth is shown."""
        for line in lines:
            self._print(Text(line, style="bold"))
        self._print(self._legend())

    def continuation(self, done: Continuation) -> None:
        """One finished request: its prompt, its tokens with their depths, and how it ended."""
        self._print(Text())
        self._print(Text(self._shortened(f"[{done.index}] {one_line(done.prompt)}"), style="dim"))
        if done.error is not None:
            self._print(Text(f"refused: {done.error}"))
            return
        self.tokens(done.pieces, done.depths)
        self._print(Text(self._ending(done), style="dim"))

    def tokens(self, pieces: Sequence[str], depths: Sequence[int]) -> None:
        """Tokens with their depths, and nothing else."""
        line = Text()
        for piece, depth in zip(pieces, depths, strict=False):
            if self._coloured:
                line.append(_printable(piece, "\n"), style=self._style(depth))
            else:
                line.append(f"{_printable(piece)}·{depth}")
        self._print(line)

    def _ending(self, done: Continuation) -> str:
        mean = UNDEFINED if done.mean_depth is None else f"{done.mean_depth:.2f}"
        count = len(done.depths)
        return (
            f"{count} token{'' if count == 1 else 's'}, mean depth {mean} of {self._max_loops}, "
            f"{done.finish_reason}"
        )

    def _legend(self) -> Text:
        if not self._coloured:
            return Text("token·d: the token left after d loops")
        legend = Text("depth:")
        ranges: dict[str, list[int]] = {}
        for depth in range(1, self._max_loops + 1):
            ranges.setdefault(self._style(depth), []).append(depth)
        for style, depths in ranges.items():
            first, last = depths[0], depths[-1]
            legend.append(f" {first}" if first == last else f" {first}-{last}", style=style)
        return legend

    def _style(self, depth: int) -> str:
        share = (depth - 1) / max(1, self._max_loops - 1)
        return _SCALE[round(share * (len(_SCALE) - 1))]

    def _shortened(self, line: str) -> str:
        width = self._console.width
        return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"

    def _print(self, text: Text) -> None:
        if for_encoding(text.plain, self._console.encoding) != text.plain:
            text = Text(for_encoding(text.plain, self._console.encoding))
        # Rich ends the process with code 1 where a reader has gone; that code means something here.
        with self._console.capture() as shown:
            if self._folds:
                self._console.print(text, overflow="fold")
            else:
                self._console.print(text, soft_wrap=True)
        self._console.file.write(shown.get())


def one_line(value: object) -> str:
    """Any text on one line, with control characters written out."""
    return _printable(" ".join(str(value).split()))


def _printable(text: str, keep: str = "") -> str:
    """The text with control characters written out: a model must not steer the terminal."""
    return "".join(
        c if c in keep or not (ord(c) < 32 or 127 <= ord(c) < 160) else repr(c)[1:-1] for c in text
    )
