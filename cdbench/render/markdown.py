"""The table as GitHub Markdown."""

from __future__ import annotations

from cdbench.render.table import Row, Table, marked


def to_markdown(table: Table) -> str:
    """A pipe table with its title, group rows and footnotes; ends with a newline."""
    marks = table.footnotes()
    header = [marked(column.header, column.note, marks) for column in table.columns]
    rules = ["---:" if column.align == "right" else ":---" for column in table.columns]
    lines = [_line([_escape(title) for title in header]), _line(rules)]
    for group, rows in table.groups():
        if group is not None:
            blanks = [""] * (len(table.columns) - 1)
            lines.append(_line([f"**{_escape(group)}**", *blanks]))
        lines += [_line(_cells(row, marks)) for row in rows]
    title = [f"**{_escape(table.title)}**", ""] if table.title else []
    notes = [f"({mark}) {note}" for note, mark in marks.items()]
    below = [part for note in (*table.notes, *notes) for part in ("", note)]
    return "\n".join([*title, *lines, *below]) + "\n"


def _cells(row: Row, marks: dict[str, str]) -> list[str]:
    texts = [_escape(marked(cell.formatted().line, cell.note, marks)) for cell in row.cells]
    return [f"**{content}**" if row.emphasis and content else content for content in texts]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escape(content: str) -> str:
    return content.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
