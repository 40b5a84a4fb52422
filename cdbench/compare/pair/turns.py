"""Whose turn it is: A B B A, then B A A B, one worker computing while the other sleeps.

A side's two regions of a mode lie around the same moment as the other's, so a machine that drifts
steadily slows both alike. From pair to pair the outer places change hands, and so does the order of
the modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cdbench.bench.validity import captured_meanwhile
from cdbench.compare.pair.process import Worker
from cdbench.errors import InvalidRunError
from cdbench.schema.pairing import PairRun, SideName, Timed

RUNS_PER_SIDE = 2
"""Timed regions of a mode and side in a pair."""

LEAST_LIMIT_S = 120.0
LIMIT_TIMES = 30
"""A timed region may take so many times as long as the longest one seen before it is given up."""

ORDERS: tuple[tuple[SideName, ...], ...] = (
    ("old", "new", "new", "old"),
    ("new", "old", "old", "new"),
)
Turn = tuple[SideName, str]


def turns(pair: int, modes: Sequence[str]) -> list[Turn]:
    """Sides and modes of one pair, in order."""
    order = ORDERS[pair % 2]
    labels = list(modes) if pair % 2 == 0 else list(reversed(modes))
    return [(side, mode) for mode in labels for side in order]


class Limits:
    """How long a worker may be silent over one region of each mode."""

    def __init__(
        self,
        seen: Mapping[str, float],
        least_s: float = LEAST_LIMIT_S,
        times: float = LIMIT_TIMES,
    ) -> None:
        self._seen, self._least_s, self._times = dict(seen), least_s, times

    def of(self, mode: str) -> float:
        """The limit in seconds."""
        return max(self._least_s, self._times * self._seen.get(mode, 0.0))

    def saw(self, mode: str, wall_s: float) -> None:
        """One more region took so long."""
        self._seen[mode] = max(wall_s, self._seen.get(mode, 0.0))


def timed_pair(
    pair: int, modes: Sequence[str], workers: Mapping[SideName, Worker], limits: Limits
) -> Iterator[PairRun]:
    """Every timed region of one pair.

    Raises:
        InvalidRunError: a side did not do the recorded work, or captured launches while timed.
        WorkerError: a worker died, hung or answered nonsense.
    """
    for order, (side, mode) in enumerate(turns(pair, modes)):
        worker = workers[side]
        doing = f"timing {mode} in pair {pair + 1}"
        found = worker.ask(Timed, "time", doing, limits.of(mode), mode=mode)
        check_timed(worker.name, mode, found)
        if found.environment and (why := captured_meanwhile([found.environment])):
            raise InvalidRunError(f"{worker.name}: mode {mode}: {why[0]}")
        limits.saw(mode, found.wall_s)
        yield PairRun(
            pair=pair,
            order=order,
            side=side,
            mode=mode,
            wall_s=found.wall_s,
            decode_wall_s=found.decode_wall_s,
            metrics=found.metrics,
            environment=found.environment,
        )


def check_timed(name: str, mode: str, found: Timed) -> None:
    """Raise InvalidRunError where a region is of other work or another mode."""
    if found.mode != mode:
        raise InvalidRunError(f"{name}: timed mode {found.mode} in place of {mode}")
    if found.unequal:
        raise InvalidRunError(f"{name}: did other work: {found.unequal[0]}")


def pair_seconds(warm: Mapping[str, float]) -> float:
    """About how long a pair takes, from one region of each mode in seconds."""
    return 2 * RUNS_PER_SIDE * sum(warm.values())


Progress = Callable[[str], None]
