"""What mixing fixed depths can reach: the line that an adaptive rule has to beat.

Serving a share of the tokens at one fixed depth and the rest at another gives any point on the
line between the two, so the upper convex hull of (depth, accuracy) costs no rule at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

Point = tuple[float, float]
"""Depth in loops and accuracy as a fraction."""


def upper_hull(points: Sequence[Point]) -> Iterator[Point]:
    """The upper convex hull of points sorted by depth, from left to right."""
    hull: list[Point] = []
    for point in points:
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    yield from hull


def height_at(hull: Sequence[Point], depth: float | None) -> float | None:
    """The hull's height at a depth; None outside of it."""
    if depth is None:
        return None
    if len(hull) == 1 and hull[0][0] == depth:
        return hull[0][1]
    for (x0, y0), (x1, y1) in pairwise(hull):
        if x0 <= depth <= x1:
            return y0 + (y1 - y0) * (depth - x0) / (x1 - x0)
    return None


def _turns_up(one: Point, two: Point, three: Point) -> bool:
    before = (two[1] - one[1]) * (three[0] - two[0])
    after = (three[1] - two[1]) * (two[0] - one[0])
    return after >= before
