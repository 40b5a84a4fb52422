"""Text as LaTeX: every character that LaTeX would take for a command is written out.

For plain pdflatex, without a font or input package: letters with accents are built, signs of this
project are set in mathematics, and what is left beyond ASCII becomes a question mark, as it does in
a terminal that cannot show it.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from cdbench.render.formats import asciify

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': "{''}",
    # After a line's end these two would be taken for its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
SIGNS = {
    "×": r"$\times$",
    "÷": r"$\div$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "†": r"$^{\dagger}$",
    "°": r"$^{\circ}$",
    "Δ": r"$\Delta$",
    "δ": r"$\delta$",
    "Σ": r"$\Sigma$",
    "µ": r"$\mu$",
    "’": "'",
    "\u00a0": "~",
}
_BY_NAME = {
    "GREEK SMALL LETTER LAMDA": r"$\lambda$",
    "GREEK SMALL LETTER MU": r"$\mu$",
    "LATIN SMALL LETTER SHARP S": r"\ss{}",
    "LATIN SMALL LETTER AE": r"\ae{}",
    "LATIN CAPITAL LETTER AE": r"\AE{}",
    "LATIN SMALL LETTER O WITH STROKE": r"\o{}",
    "LATIN CAPITAL LETTER O WITH STROKE": r"\O{}",
    "LATIN SMALL LETTER L WITH STROKE": r"\l{}",
    "LATIN CAPITAL LETTER L WITH STROKE": r"\L{}",
}
"""Letters that no sign of this project is, by their names in Unicode."""
_ACCENTS = {
    "COMBINING GRAVE ACCENT": "`",
    "COMBINING ACUTE ACCENT": "'",
    "COMBINING CIRCUMFLEX ACCENT": "^",
    "COMBINING TILDE": "~",
    "COMBINING MACRON": "=",
    "COMBINING BREVE": "u",
    "COMBINING DOT ABOVE": ".",
    "COMBINING DIAERESIS": '"',
    "COMBINING RING ABOVE": "r",
    "COMBINING DOUBLE ACUTE ACCENT": "H",
    "COMBINING CARON": "v",
    "COMBINING CEDILLA": "c",
}
_NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?")


def escape(text: str) -> str:
    """The text for a cell, a caption or a note; line breaks become blanks."""
    whole = unicodedata.normalize("NFC", " ".join(text.split()))
    # Two hyphens would join into a dash: `--limit` must stay what one types.
    return "".join(
        "{}-" if character == before == "-" else _character(character)
        for before, character in pairwise(f" {whole}")
    )


def number(text: str, *, siunitx: bool = False) -> str:
    """The text of a formatted value or interval: its numbers with true minus signs, or in \\num."""
    parts, at = [], 0
    for found in _NUMBER.finditer(text):
        parts += [escape_part(text[at : found.start()]), _number(found[0], siunitx)]
        at = found.end()
    return "".join([*parts, escape_part(text[at:])])


def escape_part(text: str) -> str:
    """As ``escape``, with the blanks at both ends kept."""
    return "".join(_character(character) for character in text)


def _number(digits: str, siunitx: bool) -> str:
    if siunitx:
        kept = r"[retain-explicit-plus]" if digits.startswith("+") else ""
        return rf"\num{kept}{{{digits.replace(',', '')}}}"
    return digits.replace("-", "$-$").replace("+", "$+$")


def _character(character: str) -> str:
    if character in SPECIAL:
        return SPECIAL[character]
    if character in SIGNS:
        return SIGNS[character]
    if character.isascii():
        return character if character.isprintable() else "?"
    if (name := unicodedata.name(character, "")) in _BY_NAME:
        return _BY_NAME[name]
    base, *marks = list(unicodedata.normalize("NFD", character))
    accent = _ACCENTS.get(unicodedata.name(marks[0], "")) if len(marks) == 1 else None
    if accent is not None and base.isascii() and base.isalpha():
        letter = rf"\{base}" if base in "ij" else base  # without their dots
        return rf"\{accent}{{{letter}}}"
    return "".join(SPECIAL.get(c, c) for c in asciify(character))
