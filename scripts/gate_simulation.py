"""Whole paired gates on simulated noise: the walls are drawn, the decisions are the gate's own.

The scatter of a cell is the standard deviation of one pair's log ratio, whatever the noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdbench.stats.gate import DEFAULT_MARGIN, LOOKS, Decision
from cdbench.stats.sequential import decide

Walls = NDArray[np.float64]
"""Log walls ``[gate, metric, pair, place]``, in the order in which they were timed."""
Noise = Callable[[np.random.Generator, tuple[int, ...]], Walls]

PAIRS, PLACES = LOOKS[-1], 4
SCATTERS = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12)
CHANGES = (0.0, -0.05, -0.08, 0.08)
"""Change of speed: −0.08 is an engine that takes 8 % longer."""
CALIBRATION = 2000
FALSE_ALARMS, DETECTED = 0.01, 0.98


# Simulated noise, one number a timed region; the last axes are pair and place.


def _normal(draw: np.random.Generator, shape: tuple[int, ...]) -> Walls:
    return draw.standard_normal(shape)


def _heavy(draw: np.random.Generator, shape: tuple[int, ...]) -> Walls:
    return draw.standard_t(3, shape)


def _wandering(draw: np.random.Generator, shape: tuple[int, ...]) -> Walls:
    """A level that wanders (AR(1), 0.9 from region to region), and a steady trend beside it."""
    steps = draw.standard_normal((*shape[:-2], shape[-2] * shape[-1]))
    level = np.zeros_like(steps)
    level[..., 0] = steps[..., 0]
    for place in range(1, steps.shape[-1]):
        level[..., place] = 0.9 * level[..., place - 1] + math.sqrt(1 - 0.81) * steps[..., place]
    trend = np.linspace(0, 3, steps.shape[-1])
    return (level + trend).reshape(shape)


def _bursts(draw: np.random.Generator, shape: tuple[int, ...]) -> Walls:
    """Quiet but for bursts: one begins at 3 % of regions, lasts five on average, and only slows."""
    flat = (*shape[:-2], shape[-2] * shape[-1])
    height = np.zeros(flat[:-1])
    found = np.zeros(flat)
    for place in range(flat[-1]):
        ends = draw.random(flat[:-1]) < 0.2
        begins = draw.random(flat[:-1]) < 0.03
        height = np.where(begins, draw.exponential(4.0, flat[:-1]), np.where(ends, 0.0, height))
        found[..., place] = height
    return (found + 0.5 * draw.standard_normal(flat)).reshape(shape)


NOISES: dict[str, Noise] = {
    "normal": _normal,
    "heavy tails (t, 3 degrees)": _heavy,
    "wandering level and trend": _wandering,
    "bursts": _bursts,
}


def gains_of(log_walls: Walls) -> Walls:
    """Log ratios ``[…, pair]`` of walls timed A B B A, B A A B; as ``log_gains`` has them."""
    walls = np.exp(log_walls)
    outer, inner = walls[..., 0] + walls[..., 3], walls[..., 1] + walls[..., 2]
    found = np.log(outer) - np.log(inner)
    found[..., 1::2] *= -1  # NEW has the outer places
    return found


def with_change(log_walls: Walls, change: float) -> Walls:
    """The same walls with NEW's turned by a change of speed."""
    longer = math.log1p(-change) if change < 0 else -math.log1p(change)
    new = np.zeros(log_walls.shape[-2:])
    new[0::2, 1:3] = new[1::2, 0::3] = 1
    return log_walls + longer * new


@dataclass(frozen=True)
class Cell:
    """Gates of one kind. ``metrics`` timed at once share ``shared`` of their noise's variance."""

    noise: str
    scatter: float
    change: float
    metrics: int = 1
    shared: float = 0.0


def cells() -> Iterator[Cell]:
    """Every kind of gate that is simulated."""
    for noise in NOISES:
        for scatter in SCATTERS:
            for change in CHANGES:
                yield Cell(noise, scatter, change)
    for metrics in (3, 6):
        for shared in (0.0, 0.8):
            for scatter in (0.02, 0.04):
                for change in (0.0, -0.08):
                    yield Cell("normal", scatter, change, metrics, shared)


def simulate(cell: Cell, gates: int, draw: np.random.Generator) -> dict[str, Any]:
    """Shares of each answer. Of several metrics only the first one changes."""
    shape = (PAIRS, PLACES)
    noise = NOISES[cell.noise]
    scale = cell.scatter / _scatter(noise)
    common = noise(draw, (gates, 1, *shape))
    own = noise(draw, (gates, cell.metrics, *shape))
    mixed = math.sqrt(cell.shared) * common + math.sqrt(1 - cell.shared) * own
    walls = scale * (mixed if cell.shared else own)
    walls[:, :1] = with_change(walls[:, :1], cell.change)
    gains = gains_of(walls)
    margins = [DEFAULT_MARGIN] * cell.metrics
    ended = [decide(gate, margins) for gate in gains.tolist()]
    said = Counter(end.decision for end in ended)
    pairs = Counter(end.pairs for end in ended)
    return {
        **asdict(cell),
        "gates": gates,
        **{each.value: said[each] / gates for each in Decision},
        "ended_after_pairs": {str(look): pairs[look] / gates for look in LOOKS},
        "failed_after_pairs": {
            str(look): sum(e.decision is Decision.FAIL and e.pairs == look for e in ended) / gates
            for look in LOOKS
        },
        "mean_pairs": sum(end.pairs for end in ended) / gates,
    }


def _scatter(noise: Noise) -> float:
    """Standard deviation of a pair's log ratio at unit scale, small enough to be linear."""
    small = 1e-3
    drawn = small * noise(np.random.default_rng(0), (CALIBRATION, PAIRS, PLACES))
    return float(np.std(gains_of(drawn))) / small


def claims(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the two claims hold, and where they do not."""
    unchanged = [cell for cell in found if cell["change"] == 0]
    slowed = [cell for cell in found if cell["change"] == -0.08]
    return {
        "false_alarms_at_most": FALSE_ALARMS,
        "most_false_alarms": max((cell["FAIL"] for cell in unchanged), default=None),
        "false_alarms_broken_by": [named(c) for c in unchanged if c["FAIL"] > FALSE_ALARMS],
        "detected_at_least": DETECTED,
        "least_detected": min((cell["FAIL"] for cell in slowed), default=None),
        "detected_broken_by": [named(c) for c in slowed if c["FAIL"] < DETECTED],
        "most_slowdowns_passed": max((cell["PASS"] for cell in slowed), default=None),
    }


def named(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell in short: what it is and what its gates said."""
    keys = ("noise", "scatter", "metrics", "shared", *(each.value for each in Decision))
    return {key: cell[key] for key in keys}
