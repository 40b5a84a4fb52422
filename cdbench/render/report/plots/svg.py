"""A picture as a part of a page: it follows the page's colours and font, and says what it shows.

matplotlib writes the colours of light paper; here each becomes the style sheet's variable of that
colour, so that one drawing serves light, dark and print. Ids are made the page's own.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

from cdbench.render.colours import MODES, PAGE
from cdbench.render.html_table import printable
from cdbench.render.report.parts import Plot
from cdbench.render.report.plots.style import drawing

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile("#[0-9a-fA-F]{6}")
_FONT = re.compile("font-family: *[^;]*;?")
_LONG = re.compile(r"\d+\.\d{3,}")
_TARGET = re.compile(r"url\(#([^)]+)\)")
VARIABLES = {tone.light: f"var(--{tone.name})" for tone in (*PAGE, *MODES)}


def inline_svg(plot: Plot, anchor: str) -> str:
    """The picture as an ``<svg>`` element. ``anchor``: an id that nothing else on the page has."""
    file = io.BytesIO()
    with drawing(anchor):
        plot.draw().savefig(file, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(file.getvalue())
    _prune(root)
    used = _used(root)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        _rewrite(element, anchor, used)
    _name(root, plot, anchor)
    return ET.tostring(root, encoding="unicode")


def _prune(root: ET.Element) -> None:
    """Drop what only a file needs: metadata, and a style sheet that would be the whole page's."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style"):
                parent.remove(child)


def _used(root: ET.Element) -> set[str]:
    """Ids that something in the picture refers to."""
    found = set()
    for element in root.iter():
        for name, value in element.attrib.items():
            found.update(_TARGET.findall(value))
            if name == _LINK:
                found.add(value.removeprefix("#"))
    return found


def _rewrite(element: ET.Element, anchor: str, used: set[str]) -> None:
    attributes = dict(element.attrib)
    element.attrib.clear()
    for name, value in attributes.items():
        if name == "id":
            if value in used:
                element.set("id", f"{anchor}-{value}")
        elif name == _LINK:
            element.set("href", f"#{anchor}-{value.removeprefix('#')}")
        elif name == "d":
            element.set("d", _LONG.sub(lambda number: f"{float(number[0]):.2f}", value))
        else:
            value = _TARGET.sub(lambda target: f"url(#{anchor}-{target[1]})", value)
            value = _FONT.sub("", value)
            element.set(name, _COLOUR.sub(lambda hue: _variable(hue[0]), value))


def _variable(colour: str) -> str:
    return VARIABLES.get(colour.lower(), colour)


def _name(root: ET.Element, plot: Plot, anchor: str) -> None:
    """Role, title and description; the size is the page's affair."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    title, says = ET.Element("title", id=f"{anchor}-title"), ET.Element("desc", id=f"{anchor}-desc")
    title.text, says.text = printable(plot.title), printable(plot.says)
    root.insert(0, says)
    root.insert(0, title)
    root.set("role", "img")
    root.set("aria-labelledby", f"{anchor}-title")
    root.set("aria-describedby", f"{anchor}-desc")
    root.set("class", "plot")
    root.set("xmlns", "http://www.w3.org/2000/svg")
