"""Where in lm-eval's own collection a name is: a quick look, so that its index need not be whole.

Parsing all of its files takes ten seconds of a processor; looking through them for the names that
they define or list takes one. Only the folders that have to do with a name are then parsed.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lm_eval.tasks

ROOT = Path(lm_eval.tasks.__file__).parent

_DEFINING = re.compile(
    r"""^[ \t]*(?:-[ \t]+)?["']?(?:task|group|tag)["']?[ \t]*:(.*)$""", re.MULTILINE
)
_LISTED = re.compile(r"^[ \t]*-[ \t]+(.*)$", re.MULTILINE)
_INCLUDED = re.compile(r"^[ \t]*include[ \t]*:(.*(?:\n[ \t]*-.*)*)$", re.MULTILINE)
_WORD = re.compile(r"""[^\s,\[\]'"{}]+""")


@dataclass(frozen=True)
class Catalogue:
    """Folders by the names that stand in them; ``defined`` are those of tasks, groups and tags."""

    defined: frozenset[str]
    folders: dict[str, frozenset[str]]
    included_by: dict[str, frozenset[str]]

    def places(self, names: Iterable[str]) -> list[Path]:
        """The folders to index for these names, sorted."""
        found: set[str] = set()
        reached = {folder for name in names for folder in self.folders.get(name, ())}
        # A file that includes another has its tags, without naming them.
        while reached - found:
            found |= reached
            reached = {user for folder in found for user in self.included_by.get(folder, ())}
        return [ROOT / folder for folder in sorted(found)]


@functools.cache
def catalogue() -> Catalogue:
    """What lm-eval's own files define and list, read once."""
    defined: set[str] = set()
    folders: dict[str, set[str]] = defaultdict(set)
    included_by: dict[str, set[str]] = defaultdict(set)
    tops = {path.name for path in ROOT.iterdir() if path.is_dir()}
    for top in sorted(tops):
        text = "\n".join(_texts(ROOT / top))
        for line in _DEFINING.findall(text):
            defined.update(_WORD.findall(line))
        for line in (*_DEFINING.findall(text), *_LISTED.findall(text)):
            for word in _WORD.findall(line):
                folders[word].add(top)
        for line in _INCLUDED.findall(text):
            for part in set(re.split(r"[/\s]+", line)) & tops:
                included_by[part].add(top)
    return Catalogue(
        frozenset(defined),
        {name: frozenset(found) for name, found in folders.items()},
        {name: frozenset(found) for name, found in included_by.items()},
    )


def _texts(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        # Files without a suffix are what others include.
        if path.suffix in (".yaml", "") and path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")
