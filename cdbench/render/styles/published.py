"""Figures that others published, beside a run's own: from ``configs/published/figures.yaml``."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import yaml

from cdbench import resources
from cdbench.schema import Result

FILE = "published/figures.yaml"
DEFAULT_LAYOUT = "per-loop"


@dataclass(frozen=True)
class Published:
    """Accuracy of one model on one task, in percent by loops. ``by`` is who published it."""

    model: str
    task: str
    by: str
    percent: dict[int, float] = field(hash=False)
    how: str = ""
    layout: str = DEFAULT_LAYOUT

    @property
    def source(self) -> str:
        """Whose figure it is, and that it is not ours, for a footnote."""
        how = f", {self.how}" if self.how else ""
        return f"published, not measured here: {self.by}{how}"


@functools.cache
def all_published() -> tuple[Published, ...]:
    """Every figure that is known."""
    text = (resources.data_dir("configs") / FILE).read_text(encoding="utf-8")
    return tuple(Published(**entry) for entry in yaml.safe_load(text))


def published_for(result: Result, mode: str, task: str) -> tuple[Published, float] | None:
    """The published figure of a mode's depth on a task, a fraction; None where there is none.

    Figures are of fixed depths, so that only ``static`` rows have one; a model with random weights
    has none, whatever its name.
    """
    row = result.modes.get(mode)
    model = result.model
    if row is None or row.schedule != "static" or mode == "static@auto" or model is None:
        return None
    if model.random_weights_seed is not None:
        return None
    name = _last(str(result.config.get("model")))
    for each in all_published():
        if (_last(each.model), each.task, each.layout) == (name, task, model.kv_layout):
            percent = each.percent.get(row.max_loops)
            return None if percent is None else (each, percent / 100)
    return None


def _last(name: str) -> str:
    """A hub id or a directory by its last part."""
    return name.rstrip("/").rpartition("/")[2]
