"""The grid of a profile, as a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench import resources
from cdbench.bench.directory import slug
from cdbench.config import Tree, parse_mode, read_tree, set_layer, with_keys
from cdbench.errors import UsageError
from cdbench.metrics.trace import Arrivals
from cdbench.sweep.file import SweepFile, parse_sweep
from cdbench.workloads.arrivals import ArrivalSpec

NONE = "none"


@dataclass(frozen=True)
class Axes:
    """What varies. An empty axis stays as the configuration has it.

    ``thresholds``: of the rule, or the word ``none`` for full depth; ``widths``: requests resident
    and rows of a launch at once; ``rates``: requests per second, with Poisson gaps.
    """

    thresholds: Sequence[float | str] = ()
    max_loops: Sequence[int] = ()
    widths: Sequence[int] = ()
    rates: Sequence[float] = ()


def check_axes(axes: Axes, mode: str) -> None:
    """Raise UsageError where an axis would change nothing of what the mode does."""
    if axes.thresholds and not parse_mode(mode).adaptive:
        raise UsageError(
            f"--thresholds: under mode {mode} no token exits early, so they change nothing; use "
            "--mode cdb or lockstep"
        )


def profile_base(config: str | None, overrides: Sequence[str], flags: Tree, mode: str) -> Tree:
    """The configuration around which the profile varies: flags over ``--set`` over the file.

    Without word from any of them only ``mode`` runs, only equal work, and without stage curves:
    latencies need none. An interval to wait for is dropped. UsageError for what is wrong with it.
    """
    own = {"modes": [mode], "work": ["equal"], "stages": "none"}
    tree = with_keys({}, own, "profile")
    if config is not None:
        tree = with_keys(tree, read_tree(config), config)
    tree = with_keys(tree, set_layer(overrides), "--set")
    given = {k: v for k, v in flags.items() if v is not None}
    return with_keys(tree, {**given, "repeats.interval": None}, "flags")


def profile_name(base: Tree) -> str:
    """The name of the sweep, and with it of the default directory: it says whose profile it is."""
    model = resources.canonical_model(str(base.get("model", resources.DEFAULT_MODEL)))
    return f"profile-{slug(model)}"


def profile_sweep(base: Tree, axes: Axes, name: str) -> SweepFile:
    """The sweep of a profile: the product of its axes. UsageError where an axis cannot vary."""
    grid = depth_grid(axes, base)
    if axes.widths:
        # The launch width and the free residents follow from the residents by default.
        engine = base.get("engine", {})
        kept = {k: v for k, v in engine.items() if k not in ("width", "min_free_residents")}
        base = {**base, "engine": kept}
        grid["engine.max_residents"] = list(axes.widths)
    if axes.rates:
        arrivals = (ArrivalSpec(Arrivals.OPEN_LOOP, rate=rate) for rate in axes.rates)
        grid["workload.arrivals"] = [str(spec) for spec in arrivals]
    return parse_sweep({"name": name, "base": base, "grid": grid}, "profile")


def depth_grid(axes: Axes, base: Tree) -> dict[str, list[Any]]:
    """The axes that decide how deep tokens go. UsageError where one cannot vary."""
    grid: dict[str, list[Any]] = {}
    if axes.thresholds:
        grid.update(_thresholds(axes.thresholds, base.get("exit", {}).get("rule")))
    if axes.max_loops:
        grid["exit.max_loops"] = list(axes.max_loops)
    return grid


def _thresholds(values: Sequence[float | str], rule: str | None) -> dict[str, list[Any]]:
    if NONE not in values:
        return {"exit.threshold": list(values)}
    if rule is None:
        raise UsageError("--thresholds none: beside a rule it must be named; add --exit RULE")
    return {"exit.rule": [v if v == NONE else f"{rule}@{v!r}" for v in values]}
