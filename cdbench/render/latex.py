"""The table as LaTeX: booktabs, for plain pdflatex.

Only cells marked best are bold (``cdbench.render.best``), intervals are small, what an INVALID run
measured carries a dagger, and all that must be said stands below. A document that takes it in needs
``\\usepackage{booktabs}``, and ``\\usepackage{siunitx}`` where numbers are set by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdbench.render.latex_grid import Grid
from cdbench.render.latex_text import escape
from cdbench.render.table import Table


def to_latex(tables: Sequence[Table], *, label: str | None = None, siunitx: bool = False) -> str:
    """One ``table`` environment for each table; ends with a newline.

    ``label`` is that of the first; a further one gets ``label-2``. ``siunitx`` sets numbers in
    \\num. Tables without rows are their notes.
    """
    shown = [table for table in tables if table.rows or table.notes]
    parts = []
    for place, table in enumerate(shown, start=1):
        own = label if label is None or place == 1 else f"{label}-{place}"
        parts.append("\n".join(_lines(table, own, siunitx)) + "\n")
    return "\n".join(parts)


def packages(*, siunitx: bool = False) -> tuple[str, ...]:
    """What the document must load."""
    return ("booktabs", "siunitx") if siunitx else ("booktabs",)


def _lines(table: Table, label: str | None, siunitx: bool) -> Iterator[str]:
    marks = table.footnotes() if table.rows else {}
    needed = " ".join(rf"\usepackage{{{name}}}" for name in packages(siunitx=siunitx))
    yield f"% {needed}"
    yield r"\begin{table}[t]"
    yield r"\centering"
    yield r"\setlength{\belowcaptionskip}{4pt}"
    if words := [part for part in (table.title, *table.caption) if part]:
        yield rf"\caption{{{' '.join(escape(_sentence(part)) for part in words)}}}"
        # Without a caption a label would be that of the section around it.
        if label is not None:
            yield rf"\label{{{label}}}"
    if table.rows:
        for place, grid in enumerate(Grid.of(table, marks, siunitx=siunitx)):
            if place:
                yield r"\par\medskip"
            yield from grid.lines()
    yield from _notes(table, marks)
    yield r"\end{table}"


def _sentence(words: str) -> str:
    """A part of a caption, ended like a sentence."""
    return words if words.endswith((".", "!", "?", ":")) else f"{words}."


def _notes(table: Table, marks: dict[str, str]) -> Iterator[str]:
    notes = [escape(note) for note in table.notes]
    notes += [rf"\textsuperscript{{{mark}}}~{escape(note)}" for note, mark in marks.items()]
    if not notes:
        return
    yield r"\par\smallskip"
    yield r"\begin{minipage}{\linewidth}\footnotesize\raggedright"
    yield from (rf"{note}\par" for note in notes)
    yield r"\end{minipage}"
