"""Histograms as text bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdbench.render.formats import can_print, percent

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_FULL = "█"


def depth_bars(
    counts: Sequence[int], *, width: int = 60, encoding: str | None = "utf-8"
) -> list[str]:
    """One line per depth: label, bar, share and count. Entry d−1 of ``counts`` is depth d.

    Bars are scaled to the largest share; ``width`` is the whole line's. Without tokens there is one
    line that says so. ``#`` stands in for blocks that the encoding cannot print.
    """
    labels = [f"depth {depth}" for depth in range(1, len(counts) + 1)]
    return bars(dict(zip(labels, counts, strict=True)), width=width, encoding=encoding)


def bars(
    counts: Mapping[str, int], *, width: int = 60, encoding: str | None = "utf-8"
) -> list[str]:
    """One line per label: label, bar, share of the whole and count."""
    total = sum(counts.values())
    if total == 0:
        return ["no tokens"]
    label_width = max(len(label) for label in counts)
    tails = {
        label: f"{percent(n / total):>6}  {n:>{len(f'{total:,}')},}" for label, n in counts.items()
    }
    tail_width = max(len(tail) for tail in tails.values())
    room = max(1, width - label_width - tail_width - 4)
    blocks = can_print(_EIGHTHS, encoding)
    largest = max(counts.values())
    return [
        f"{label:<{label_width}}  {_bar(n / largest, room, blocks):<{room}}  {tails[label]}"
        for label, n in counts.items()
    ]


def _bar(share: float, room: int, blocks: bool) -> str:
    """A bar of up to ``room`` characters; what is above zero is never invisible."""
    if share <= 0:
        return ""
    if not blocks:
        return "#" * max(1, round(share * room))
    eighths = max(1, round(share * room * 8))
    full, rest = divmod(eighths, 8)
    return _FULL * full + (_EIGHTHS[rest] if rest else "")
