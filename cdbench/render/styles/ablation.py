"""Style ``ablation``: runs that differ in a few configuration keys, a line for each setting."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.errors import UsageError
from cdbench.render.styles.assemble import Line, Look, Measure, assemble, measure
from cdbench.render.styles.facts import ADAPTIVE
from cdbench.render.styles.figures import SCOPE
from cdbench.render.styles.keys import differing_keys
from cdbench.render.styles.points import Measured
from cdbench.render.sweep_report import figure_column, figure_kind
from cdbench.render.table import Table
from cdbench.sweep.figures import Figure, parse_figure

MOST_KEYS = 5
"""Runs that differ in more are no ablation: nothing could be laid to one of them."""


def tables(measured: Measured) -> list[Table]:
    """One table. UsageError where there is one run, or where runs differ in nothing or too much.

    No cell is marked best: every line is another run.
    """
    points = measured.points
    name = points[0].name
    if len(points) < 2:
        raise UsageError(
            f"--style ablation: {name} is one run; name two or more that differ in a key, or a "
            "sweep (`cdbench sweep paper/coda-minimum.cpu`)"
        )
    keys = differing_keys(points)
    if not keys:
        raise UsageError(
            f"--style ablation: {name} and the others have the same configuration; `--style "
            "speedup` shows repeats of one"
        )
    if len(keys) > MOST_KEYS:
        shown = ", ".join(keys[:MOST_KEYS])
        raise UsageError(
            f"--style ablation: the runs differ in {len(keys)} keys ({shown}, ...), more than "
            f"{MOST_KEYS}; name runs that differ in fewer"
        )
    figures = [f for f in _figures(measured) if any(p.value(f) is not None for p in points)]
    if not figures:
        raise UsageError(
            f"--style ablation: {name} and the others share no figure; run them in modes that they "
            "have in common"
        )
    look = Look(
        f"Ablation of {', '.join(keys)}",
        SCOPE if any(figure.kind == "speedup" for figure in figures) else "",
        ("a/b: how many times as fast a is as b.",),
        keys=keys,
    )
    lines = [Line(point, "") for point in points]
    return [assemble(lines, [_measure(figure) for figure in figures], measured, look)]


def _measure(figure: Figure) -> Measure:
    return measure(
        figure_column(figure.name), figure_kind(figure.name), lambda point, _: point.value(figure)
    )


def _figures(measured: Measured) -> list[Figure]:
    """A sweep's own columns; of single runs the usual ones of their adaptive mode."""
    modes = list(dict.fromkeys(mode for point in measured.points for mode in point.modes))
    names = list(dict.fromkeys(n for document in measured.sweeps for n in document.columns))
    return [parse_figure(name, modes) for name in names or _usual(modes)]


def _usual(modes: Sequence[str]) -> list[str]:
    mode = next((m for m in ADAPTIVE if m in modes), modes[0])
    overs = [
        over for over in ("static", "static@auto", "lockstep") if over in modes and over != mode
    ]
    return [
        f"{mode}.accuracy",
        f"{mode}.mean_depth",
        f"{mode}.output_throughput",
        *(f"{mode}/{over}" for over in overs),
        *([f"{mode}/static.decode"] if "static" in overs else []),
        f"{mode}.realised.flop_bound",
    ]
