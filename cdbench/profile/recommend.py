"""Which setting to serve with: the highest goodput among those that meet the targets.

Settings whose goodput cannot be told from the best are tied, and of them the shallowest is taken:
it does the same for fewer loops. Where the requests or the blocks are too few, it says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy import stats

from cdbench.render.formats import percent
from cdbench.schema.profile import ProfileCell, Recommendation, SloRecord
from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.stats.paired import wilson

SAME_GOODPUT_P = 0.05
"""Two goodputs are told apart below this p (Welch's t over blocks, two-sided)."""
WORSE = "worse"


def recommend(
    cells: Sequence[ProfileCell], goodputs: Mapping[int, Sequence[float]], slo: SloRecord
) -> Recommendation:
    """Choose among the measured cells. ``goodputs``: cell number → req/s of each of its blocks."""
    if slo.ttft_s is None and slo.tpot_s is None and slo.e2e_s is None:
        return Recommendation(
            verdict="no target",
            sentences=["No target was given: add --slo-tpot, --slo-ttft or --slo-e2e."],
        )
    valid = [cell for cell in cells if cell.state == "VALID" and cell.slo is not None]
    meeting = [cell for cell in valid if cell.slo == "meets" and not _known_worse(cell)]
    if not meeting:
        return _none(valid, slo)
    best = max(meeting, key=_goodput)
    tied = [cell for cell in meeting if cell is best or _same(cell, best, goodputs)]
    # Of equal depths the smaller maximum, then the better goodput.
    chosen = min(tied, key=lambda c: (_depth(c), c.max_loops or 0, -_goodput(c)))
    return Recommendation(
        verdict="recommended",
        cell=chosen.number,
        tied=[cell.number for cell in tied if cell is not chosen],
        sentences=list(_why(chosen, best, tied, valid, goodputs, slo)),
    )


def _none(valid: Sequence[ProfileCell], slo: SloRecord) -> Recommendation:
    if not valid:
        return Recommendation(
            verdict="cannot tell", sentences=["Cannot tell: no valid cell has been measured."]
        )
    open_cells = [cell for cell in valid if cell.slo == "cannot tell"]
    if open_cells:
        n = max(cell.requests for cell in open_cells)
        return Recommendation(
            verdict="cannot tell",
            sentences=[
                f"Cannot tell: no cell is shown to keep {slo.percentile:g} % of requests within "
                f"the targets, and for {len(open_cells)} the {n:,} requests are too few to say. "
                f"Raise workload.requests: {needed(slo.percentile):,} would do if every one met "
                "them, and more the nearer the share is."
            ],
        )
    if any(cell.slo == "meets" for cell in valid):
        return Recommendation(
            verdict="none meets",
            sentences=["Every cell that meets the targets is less accurate than full depth."],
        )
    nearest = max(valid, key=lambda c: (c.attained.estimate or 0.0) if c.attained else 0.0)
    share = nearest.attained.estimate if nearest.attained else None
    return Recommendation(
        verdict="none meets",
        sentences=[
            f"No cell keeps {slo.percentile:g} % of requests within the targets. Cell "
            f"{nearest.number} comes nearest, with {percent(share)}."
        ],
    )


def _why(
    chosen: ProfileCell,
    best: ProfileCell,
    tied: Sequence[ProfileCell],
    valid: Sequence[ProfileCell],
    goodputs: Mapping[int, Sequence[float]],
    slo: SloRecord,
) -> list[str]:
    share = chosen.attained
    assert share is not None, "only a judged cell is chosen"
    words = f"{chosen.rule} at {chosen.threshold:g}" if chosen.threshold is not None else "no exit"
    said = [
        f"Cell {chosen.number} ({words}, max_loops {chosen.max_loops}, width {chosen.width}, "
        f"{chosen.arrivals}): {_goodput(chosen):.3g} requests/s within the targets, which "
        f"{percent(share.estimate, share.low, share.high)} of its requests meet."
    ]
    if chosen is not best:
        said.append(
            f"Cell {best.number} has {_goodput(best):.3g}, which these blocks cannot tell apart, "
            f"at {_depth(best):.3g} loops per token instead of {_depth(chosen):.3g}."
        )
    if any(len(goodputs.get(cell.number, ())) < MIN_BLOCKS for cell in tied):
        said.append(
            f"With fewer than {MIN_BLOCKS} blocks no goodput can be told from another: the choice "
            "among cells that meet the targets is the shallowest, not the fastest."
        )
    unsure = [str(cell.number) for cell in valid if cell.slo == "cannot tell"]
    if unsure:
        said.append(
            f"Cells {', '.join(unsure)} may meet the targets too: their {chosen.requests:,} "
            "requests cannot tell."
        )
    if chosen.accuracy is None:
        said.append(
            "Accuracy was not measured here: a shallower setting may answer worse. Run with work: "
            "[live, equal] to see it."
        )
    elif chosen.accuracy_verdict == "cannot tell":
        said.append("Whether it is as accurate as full depth, these questions cannot tell.")
    return said


def needed(percentile: float) -> int:
    """Requests that would show the share, if every one met the targets."""
    low, high = 1, 2
    while not _shows(high, percentile):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _shows(middle, percentile) else (middle, high)
    return high


def _shows(n: int, percentile: float) -> bool:
    interval = wilson(n, n, 0.90)
    return interval is not None and interval.low is not None and interval.low >= percentile / 100


def _same(a: ProfileCell, b: ProfileCell, goodputs: Mapping[int, Sequence[float]]) -> bool:
    """Whether two goodputs cannot be told apart; too few blocks never tell."""
    first, second = goodputs.get(a.number, ()), goodputs.get(b.number, ())
    if min(len(first), len(second)) < MIN_BLOCKS:
        return True
    if len({*first, *second}) == 1:
        return True
    return bool(stats.ttest_ind(first, second, equal_var=False).pvalue >= SAME_GOODPUT_P)


def _known_worse(cell: ProfileCell) -> bool:
    return cell.accuracy_verdict == WORSE


def _goodput(cell: ProfileCell) -> float:
    return (cell.goodput.estimate or 0.0) if cell.goodput is not None else 0.0


def _depth(cell: ProfileCell) -> float:
    return cell.mean_depth if cell.mean_depth is not None else float("inf")
