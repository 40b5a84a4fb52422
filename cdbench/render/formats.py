"""How numbers read: the only place that turns a value into text.

The number of digits follows the uncertainty: an interval keeps one significant digit of its
half-width, a bare value three significant digits. A text is split into the value and its interval,
so that a narrow table can put the second under the first.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import NamedTuple

SIGNIFICANT_DIGITS = 3
ROUNDING = 1e-9
"""Of a value: an interval no wider than this comes from rounding, of equal numbers."""
MAX_DECIMALS = 6
UNDEFINED = "n/a"


class Kind(StrEnum):
    """What a value is, and so how it reads."""

    TEXT = "text"
    NUMBER = "number"
    COUNT = "count"
    RATIO = "ratio"
    PERCENT = "percent"
    POINTS = "points"
    BYTES = "bytes"
    SECONDS = "seconds"


class Formatted(NamedTuple):
    """A value and, apart, its interval (empty where there is none)."""

    value: str
    interval: str = ""

    @property
    def line(self) -> str:
        """Both on one line."""
        return f"{self.value} {self.interval}".rstrip()


def format_value(
    value: float | str | None,
    kind: Kind = Kind.NUMBER,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
) -> Formatted:
    """Text of a value with its interval. Shares and differences come as fractions.

    An undefined value is ``n/a``, with ``(n=…)`` where ``n`` says how few observations there were;
    a ``n`` beside a value without an interval is shown likewise.
    """
    if isinstance(value, str):
        return Formatted(value)
    count = "" if n is None else f"(n={n:,})"
    if value is None or not math.isfinite(value):
        return Formatted(UNDEFINED, count)
    scale, unit = _scale(value, kind)
    ends = (low / scale, high / scale) if low is not None and high is not None else None
    decimals = _decimals(value / scale, kind, ends)
    text = _number(value / scale, decimals, signed=kind is Kind.POINTS) + unit
    if ends is None:
        return Formatted(text, count)
    inner = ", ".join(_number(end, decimals, signed=kind is Kind.POINTS) for end in ends)
    return Formatted(text, f"[{inner}]")


def ratio(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """``1.52× [1.49, 1.55]``."""
    return format_value(value, Kind.RATIO, low, high).line


def percent(share: float | None, low: float | None = None, high: float | None = None) -> str:
    """``95.3% [94.1, 96.2]`` of a fraction."""
    return format_value(share, Kind.PERCENT, low, high).line


def points(difference: float | None, low: float | None = None, high: float | None = None) -> str:
    """``-0.3 pt [-0.9, +0.2]`` of a difference of fractions."""
    return format_value(difference, Kind.POINTS, low, high).line


def si_bytes(size: float | None) -> str:
    """``1.23 MB``: powers of 1000."""
    return format_value(size, Kind.BYTES).line


def seconds(duration_s: float | None) -> str:
    """``12.3 ms``: the unit that suits the size."""
    return format_value(duration_s, Kind.SECONDS).line


def can_print(text: str, encoding: str | None) -> bool:
    """Whether a stream of that encoding can carry the text."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def asciify(text: str) -> str:
    """The text in ASCII: signs are replaced by their nearest reading, the rest by ``?``."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def for_encoding(text: str, encoding: str | None) -> str:
    """The text as it is where the encoding allows, else in ASCII; ``visible`` in either."""
    text = visible(text)
    return text if can_print(text, encoding) else asciify(text)


def visible(text: str) -> str:
    """The text without characters that act on a terminal or turn text around: a sign for each.

    Names come from files that others wrote. Line breaks stay, for they are laid out.
    """
    return _ACTING.sub("\ufffd", text.replace("\t", " "))


_ACTING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Controls (C0, C1, DEL) but the line feed; other line ends; overrides of direction."""

_ASCII = str.maketrans(
    {
        "×": "x",
        "−": "-",
        "–": "-",
        "—": "-",
        "·": "*",
        "…": "...",
        "→": "->",
        "←": "<-",
        "†": "!",
        "↑": "^",
        "↓": "v",
        "Δ": "d",
        "δ": "delta",
        "Σ": "sum",
        "≥": ">=",
        "≤": "<=",
        "±": "+-",
        "÷": "/",
        "µ": "u",
        "─": "-",
        "°": "deg",
        "\u00a0": " ",
        "\u0302": "",  # a hat over the letter before
        "\u0304": "",  # a bar over it
        **dict.fromkeys("▏▎▍▌▋▊▉█", "#"),
        "’": "'",
    }
)

_IN_POINTS = (Kind.PERCENT, Kind.POINTS)
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_TIME_UNITS = ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"))


def _scale(value: float, kind: Kind) -> tuple[float, str]:
    """What to divide by, and the unit to print."""
    if kind is Kind.PERCENT:
        return 0.01, "%"
    if kind is Kind.POINTS:
        return 0.01, " pt"
    if kind is Kind.RATIO:
        return 1.0, "×"
    if kind is Kind.BYTES:
        power = 0
        # 999.9 kB would round to 1000 kB: the next unit reads better.
        while abs(value) / 1000**power >= 999.5 and power < len(_BYTE_UNITS) - 1:
            power += 1
        return 1000.0**power, f" {_BYTE_UNITS[power]}"
    if kind is Kind.SECONDS:
        for size, unit in _TIME_UNITS:
            if abs(value) >= size * 0.9995:
                return size, unit
        return _TIME_UNITS[-1] if value else _TIME_UNITS[0]
    return 1.0, ""


def _decimals(value: float, kind: Kind, ends: tuple[float, float] | None) -> int:
    """Decimal places; negative ones round to tens, hundreds, …"""
    if kind is Kind.COUNT and value == int(value):
        return 0
    magnitude = _magnitude(value)
    half_width = (ends[1] - ends[0]) / 2 if ends else 0.0
    if half_width > ROUNDING * abs(value):
        wanted = -math.floor(math.log10(half_width))
        # However unsure, two digits of the value stay, and shares keep a tenth of a point.
        least = 1 if kind in _IN_POINTS else 1 - magnitude
        if kind is Kind.RATIO:
            # Which side of 1 an end lies on must never be rounded away.
            least = 2
        return min(MAX_DECIMALS, max(wanted, least))
    if kind is Kind.RATIO:
        return 2
    if kind in _IN_POINTS:
        return 1
    if value == 0 or (kind is Kind.BYTES and value == int(value)):
        return 0
    return max(0, min(MAX_DECIMALS, SIGNIFICANT_DIGITS - 1 - magnitude))


def _magnitude(value: float) -> int:
    """Power of ten of the first digit once rounded: 0.9996 reads 1.00, so 0 and not −1."""
    return int(f"{value:.{SIGNIFICANT_DIGITS - 1}e}".partition("e")[2])


def _number(value: float, decimals: int, *, signed: bool) -> str:
    rounded = round(value, decimals) + 0.0  # + 0.0 turns -0.0 into 0.0
    sign = "+" if signed and rounded > 0 else ""
    return f"{sign}{rounded:,.{max(0, decimals)}f}"
