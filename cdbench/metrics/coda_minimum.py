"""How many exited tokens a coda launch should wait for: seconds a token, from stage curves.

A coda launch, and the prelude launch of the next tokens after it, cost less a token the more of
them they hold. But tokens that wait for them are missing from the core launches in between. With N
tokens in flight of which w wait, a core launch has b = min(W, N − w) rows; once w ≥ K, one coda
launch and one prelude launch take all of them. So a token costs, over many launches of each kind,

    cost(K) = mean depth · Σ t_core(b) / Σ b  +  Σ (t_coda(w) + t_prelude(w)) / Σ w

What b and w are follows from K and from how depths are spread: tokens that all run about as many
loops come back from a coda together and leave together, others trickle. There is no closed form for
that, so the flow of tokens is run through with drawn depths, for all K at once, the same draws for
each; no model runs. Host time between launches and prompts are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdbench.metrics.curves import CurveStage, FloatArray, MeasuredCurves

IntArray = npt.NDArray[np.int64]

GROWTH = 1.125
"""From one minimum that is looked at to the next: between them costs hardly differ."""
TOKENS, LAUNCHES = 16, 400
"""Tokens a row, and core launches, that the flow is run for at least. A quarter is for settling."""
TIE = 0.002
"""A smaller minimum that costs this little more is taken: its tokens wait for less."""
SEED = 0
LATER = 1 << 32
"""In the order of entry: by the launch after which a token entered, then by that it had left."""

CORE: CurveStage = "core_with_exit"
CODA: CurveStage = "coda_with_exit"
PRELUDE: CurveStage = "prelude_with_exit"


@dataclass(frozen=True)
class Depths:
    """How deep tokens go: entry k − 1 of ``shares`` is the share of those that run k loops.

    ``read_out``: every loop is read out, as for a rule on logits; else only the last one.

    Raises:
        ValueError: there is no share above 0, or one below.
    """

    shares: tuple[float, ...]
    read_out: bool = False

    def __post_init__(self) -> None:
        if not (sum(self.shares) > 0 and min(self.shares) >= 0):
            raise ValueError(f"shares of depths {self.shares}: need one above 0, and none below")

    @staticmethod
    def even(max_loops: int) -> Depths:
        """1 … ``max_loops`` in equal parts."""
        return Depths((1 / max_loops,) * max_loops)

    @property
    def chances(self) -> FloatArray:
        """The shares, adding up to 1."""
        shares = np.array(self.shares, np.float64)
        chances: FloatArray = shares / shares.sum()
        return chances

    @property
    def mean(self) -> float:
        """Loops a token."""
        return float(self.chances @ np.arange(1, len(self.shares) + 1))

    def distance(self, other: Depths) -> float:
        """The largest difference between the shares of tokens of at most k loops, over all k."""
        return float(np.abs(np.cumsum(self.chances) - np.cumsum(other.chances)).max())


def minimums(most: int) -> list[int]:
    """The minimums that are looked at: 1 and up to ``most`` rows, each an eighth above the last."""
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(found[-1] * GROWTH))))
    return found


def best_minimum(
    curves: MeasuredCurves, depths: Depths, width: int, in_flight: int, context: float
) -> int:
    """The minimum of least cost, in rows; of several that hardly differ the smallest.

    A minimum counts as the dearest of itself and the next ones looked at: where depths are much
    alike, how tokens first met goes on to decide which of them leave together, and next to a
    minimum that is cheap for some there is one that is not.

    Launches have up to ``width`` rows, and cost what they do at ``context`` positions.

    Raises:
        ValueError: the curves do not reach the width.
    """
    looked_at = minimums(min(width, in_flight))
    costs = seconds_per_token(curves, depths, width, in_flight, context, looked_at)
    beside = np.pad(costs, 1, mode="edge")
    safe = np.max([beside[:-2], costs, beside[2:]], axis=0)
    return looked_at[int(np.argmax(safe <= (1 + TIE) * safe.min()))]


def seconds_per_token(
    curves: MeasuredCurves,
    depths: Depths,
    width: int,
    in_flight: int,
    context: float,
    looked_at: list[int],
) -> FloatArray:
    """Seconds a token under each of these minimums. Arguments and errors as ``best_minimum``."""
    times = _Times.of(curves, width, context)
    flow = _Flow(depths, in_flight, width, np.array(looked_at))
    launches = int(max(LAUNCHES, TOKENS * depths.mean))
    # By minimum: seconds and rows of core launches, seconds and tokens of what comes after.
    core_s, rows, boundary_s, tokens = np.zeros((4, len(looked_at)))
    for launch in range(launches):
        if launch == launches // 4:
            for settling in (core_s, rows, boundary_s, tokens):
                settling[:] = 0.0
        ran = flow.loop(launch)
        core_s += times.core_s[ran]
        rows += ran
        held, done = flow.read_out(launch)
        boundary_s += times.several(times.coda_s, held) + times.several(times.prelude_s, done)
        tokens += done
    cost: FloatArray = depths.mean * core_s / rows + boundary_s / tokens
    return cost


@dataclass(frozen=True)
class _Times:
    """Seconds of launches by rows, from none to ``width``."""

    core_s: FloatArray
    coda_s: FloatArray
    prelude_s: FloatArray

    @staticmethod
    def of(curves: MeasuredCurves, width: int, context: float) -> _Times:
        rows, at = np.arange(1, width + 1), np.full(width, context)
        return _Times(
            *(
                np.concatenate([[0.0], curves.launches_s(stage, rows, at)])
                for stage in (CORE, CODA, PRELUDE)
            )
        )

    @staticmethod
    def several(stage_s: FloatArray, rows: IntArray) -> FloatArray:
        """Rows above the width take as many full launches as they need."""
        width = stage_s.size - 1
        taken: FloatArray = stage_s[np.minimum(rows, width)] * np.maximum(1.0, rows / width)
        return taken


class _Flow:
    """Tokens on their way, ``[minimums, tokens in flight]``: oldest first, as ``cdb`` serves them.

    They start at loops as they would be met in the middle of a run.
    """

    def __init__(self, depths: Depths, in_flight: int, width: int, minimums_C: IntArray) -> None:
        draw = np.random.default_rng(SEED)
        self.width, self.minimums_C, self.reads_out = width, minimums_C, depths.read_out
        loops, shape = np.arange(1, len(depths.shares) + 1), (minimums_C.size, in_flight)
        # Of tokens met in the middle, more are deep than of all.
        met = draw.choice(loops, in_flight, p=depths.chances * loops / depths.mean)
        self.depth = np.broadcast_to(met, shape).copy()
        self.ran = np.broadcast_to((draw.random(in_flight) * met).astype(np.int64), shape).copy()
        self.entered, self.left = -self.ran * LATER, np.zeros(shape, np.int64)
        self.waiting = np.zeros(shape, np.bool_)
        self.turn = np.zeros(shape, np.int64)
        self.draws = draw.choice(loops, (4 * TOKENS, in_flight), p=depths.chances)
        self.places = np.arange(in_flight)

    def loop(self, launch: int) -> IntArray:
        """One core launch; its rows ``[minimums]``."""
        running = ~self.waiting
        if self.places.size > self.width:
            entered = np.where(running, self.entered, (launch + 1) * LATER)
            oldest = np.argsort(entered, axis=1, kind="stable")[:, : self.width]
            within = np.zeros_like(running)
            np.put_along_axis(within, oldest, True, axis=1)
            running &= within
        self.ran += running
        leaving = running & (self.reads_out | (self.ran >= self.depth))
        self.waiting |= leaving
        self.left[leaving] = launch
        rows: IntArray = running.sum(1)
        return rows

    def read_out(self, launch: int) -> tuple[IntArray, IntArray]:
        """The coda launch where it is due, or nothing else can run: its rows and tokens done."""
        held = self.waiting.sum(1)
        due = (held >= self.minimums_C) | (held == self.places.size)
        held[~due] = 0
        out = self.waiting & due[:, None]
        done = out & (self.ran >= self.depth)
        self.waiting &= ~out
        self.turn += done
        drawn = self.draws[self.turn % len(self.draws), self.places]
        self.depth = np.where(done, drawn, self.depth)
        self.ran[done] = 0
        # Of tokens from one coda those are first that came to it first.
        self.entered = np.where(done, launch * LATER + self.left, self.entered)
        return held, done.sum(1)
