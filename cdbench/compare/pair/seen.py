"""What the timed regions of a paired gate come to: log ratios by pair, and NEW's own figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from cdbench.compare.gate_file import TimedSection
from cdbench.compare.gate_times import Key
from cdbench.metrics.registry import METRICS
from cdbench.schema.pairing import PairRun, SideName
from cdbench.stats.blocks import RUNS_PER_BLOCK

THROUGHPUT = "output_throughput"


class Seen:
    """Timed regions by pair, side and mode."""

    def __init__(self, runs: Iterable[PairRun]) -> None:
        self._runs: dict[tuple[int, SideName, str], list[PairRun]] = defaultdict(list)
        for run in runs:
            self._runs[run.pair, run.side, run.mode].append(run)
        self.pairs = sorted({pair for pair, _, _ in self._runs})

    def wall_s(self, pair: int, side: SideName, mode: str, scope: str = "e2e") -> float | None:
        """The walls of a side's regions in one pair, added up; None where one is undefined."""
        runs = self._runs.get((pair, side, mode), [])
        walls = [run.wall_s if scope == "e2e" else run.decode_wall_s for run in runs]
        return _total(walls) if len(walls) == RUNS_PER_BLOCK else None

    def mean(self, pair: int, side: SideName, mode: str, metric: str) -> float | None:
        """The mean of a metric over a side's regions in one pair; None where one is undefined."""
        values = [run.metrics.get(metric) for run in self._runs.get((pair, side, mode), [])]
        total = _total(values)
        return None if total is None or not values else total / len(values)

    def means(self, side: SideName, mode: str, metric: str) -> list[float] | None:
        """One mean a pair; None where it is undefined in some pair."""
        found = [self.mean(pair, side, mode, metric) for pair in self.pairs]
        return (
            None if any(value is None for value in found) else [v for v in found if v is not None]
        )

    def values(self, side: SideName, mode: str, metric: str) -> list[float]:
        """Every defined value of a metric, region by region."""
        return [
            value
            for (_, own, label), runs in sorted(self._runs.items())
            if (own, label) == (side, mode)
            for run in runs
            if (value := run.metrics.get(metric)) is not None
        ]

    def speedups(self, side: SideName, mode: str, over: str, scope: str) -> list[float] | None:
        """log(wall of ``over`` / wall of ``mode``) of one side, pair by pair."""
        found = []
        for pair in self.pairs:
            walls = [self.wall_s(pair, side, label, scope) for label in (over, mode)]
            logs = [_log(wall) for wall in walls]
            if logs[0] is None or logs[1] is None:
                return None
            found.append(logs[0] - logs[1])
        return found


def log_gains(seen: Seen, key: Key, timed: TimedSection) -> list[float] | None:
    """How much better NEW is than OLD, one log ratio a pair; None where it is undefined.

    Throughput goes by the walls of equal work. Swapped sides have the same gains with the other
    sign, to the digit: differences of logs, not logs of ratios.
    """
    mode, metric = key
    if metric == "speedup":
        old, new = (seen.speedups(side, mode, timed.over, timed.scope) for side in ("old", "new"))
        if old is None or new is None:
            return None
        return [b - a for a, b in zip(old, new, strict=True)]
    found = []
    for pair in seen.pairs:
        if metric == THROUGHPUT:
            logs = [_log(seen.wall_s(pair, side, mode)) for side in ("old", "new")]
            direction = "down"
        else:
            logs = [_log(seen.mean(pair, side, mode, metric)) for side in ("old", "new")]
            direction = METRICS[metric].direction
        old_log, new_log = logs
        if old_log is None or new_log is None:
            return None
        found.append(new_log - old_log if direction == "up" else old_log - new_log)
    return found


def all_gains(
    seen: Seen, keys: Sequence[Key], timed: TimedSection
) -> tuple[dict[Key, list[float]], dict[Key, str]]:
    """The log ratios of every key that has them, and why the others have none."""
    gains: dict[Key, list[float]] = {}
    why: dict[Key, str] = {}
    for key in keys:
        logs = log_gains(seen, key, timed)
        if logs is None:
            why[key] = f"{key[1]} is undefined on this work, or not above 0"
        else:
            gains[key] = logs
    return gains, why


def count_notes(seen: Seen, modes: Sequence[str], counts: Iterable[str]) -> list[str]:
    """Counts that differ between the sides, or vary within one: no verdict hangs on them."""
    notes = []
    for mode in modes:
        for name in sorted(counts):
            each: Mapping[str, list[float]] = {
                "OLD": sorted(set(seen.values("old", mode, name))),
                "NEW": sorted(set(seen.values("new", mode, name))),
            }
            varying = [side for side, values in each.items() if len(values) > 1]
            old, new = each["OLD"], each["NEW"]
            if varying:
                values = each[varying[0]]
                notes.append(
                    f"{name} of {mode} varies within {varying[0]}, {_number(values[0])} to "
                    f"{_number(values[-1])}"
                )
            elif old and new and old != new:
                notes.append(f"{name} of {mode}: {_number(old[0])} → {_number(new[0])}")
    return notes


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _log(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def _number(value: float) -> str:
    return f"{value:,.10g}"
