"""The waterfall as a table, and in a sentence: where the rest of the gain went."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.metrics.waterfall import BOUNDARY_STAGES, CURVE_LIMIT, WIDER_LAUNCHES
from cdbench.render.formats import Kind, percent, ratio
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.schema import IntervalRecord, Result, Waterfall, WaterfallRow

EFFECT_WORDS = {
    "loops_saved": "loops saved",
    "boundary_stages": "boundary stages, ideally packed",
    "wider_launches": "wider launches: more requests held",
    "exit_rule": "exit rule: signal, test, readback",
    "wasted_loops": "loops wasted by late exits",
    "fill_and_drain": "fill and drain",
    "empty_rows": "empty rows and padding",
    "small_boundary_launches": "small boundary launches",
    "stage_curves": "stage curves vs measured in place",
    "host_time": "host time",
    "prefill_and_first_tokens": "prompts and first tokens (e2e)",
}
"""The rows in a reader's words, in their order."""

DECODE, E2E = "host_time", "prefill_and_first_tokens"
NAMED_LOSSES = 3
VISIBLE = 0.001
"""A factor nearer to 1 than this reads as none."""
WORTH_NAMING = 0.005
"""A loss below half a percent has no place in the sentence."""


def waterfall_tables(result: Result) -> list[Table]:
    """One table for each mode that has a waterfall, or a reason why it has none."""
    return [waterfall_table(found, mode) for mode, found in (result.waterfall or {}).items()]


def waterfall_table(waterfall: Waterfall, mode: str) -> Table:
    """Effect, speed-up so far, factor with its interval, and what that means."""
    columns = (
        Column("effect", align="left"),
        Column("speed-up so far"),
        Column("factor"),
        Column("which means", align="left", priority=1),
    )
    rows = tuple(
        Row(
            (
                text(EFFECT_WORDS.get(row.effect, row.effect)),
                _ratio_cell(row.speedup),
                factor_cell(row),
                text(_meaning(row)),
            ),
            emphasis=row.effect in (_bound_row(waterfall), DECODE, E2E),
        )
        for row in waterfall.rows
    )
    title = f"waterfall: {mode} over {waterfall.over}, from loops saved to the measured speed-up"
    return Table(columns, rows, title, notes=tuple(_notes(waterfall, mode)))


def where_the_rest_went(waterfall: Waterfall, mode: str) -> str:
    """The biggest losses between ``time_bound`` and the measured speed-up, in one sentence.

    Empty where there is no waterfall. What the intervals cannot tell from no loss is not named.
    """
    rows = {row.effect: row for row in waterfall.rows}
    first = _bound_row(waterfall)
    if not {first, DECODE, E2E} <= set(rows):
        return ""
    bound, decode, e2e = (rows[name].speedup.estimate for name in (first, DECODE, E2E))
    names = list(EFFECT_WORDS)
    between = names[names.index(first) + 1 : names.index(DECODE) + 1]
    losses = [
        rows[name]
        for name in between
        if name in rows and _lost(rows[name].known_factor, least=WORTH_NAMING)
    ]
    losses.sort(key=lambda row: row.factor.estimate or 1.0)
    named = _listed(
        f"{EFFECT_WORDS[row.effect]} ({_size(row.factor)})" for row in losses[:NAMED_LOSSES]
    )
    rest = f"most of the rest went to {named}" if named else "no single loss stands out"
    if "stage_curves" in rows and _beyond(rows["stage_curves"].known_factor):
        rest += " (the stage curves do not describe this run, so the split is unsure)"
    wider = ""
    if first == WIDER_LAUNCHES:
        wider = f" ({ratio(rows[first].factor.estimate)} of it by wider launches)"
    return (
        f"of the {ratio(bound)} over {waterfall.over} that ideal packing allows in decoding"
        f"{wider}, {mode} reached {ratio(decode)}; {rest}; with prompts and first tokens it is "
        f"{ratio(e2e)}"
    )


def _bound_row(waterfall: Waterfall) -> str:
    """The row that ends at the decode ``time_bound``."""
    wider = any(row.effect == WIDER_LAUNCHES for row in waterfall.rows)
    return WIDER_LAUNCHES if wider else BOUNDARY_STAGES


def _notes(waterfall: Waterfall, mode: str) -> Iterator[str]:
    if waterfall.reason is not None:
        yield f"no waterfall: {waterfall.reason}"
        return
    yield (
        "Decode scope but for the last row: later tokens, and the wall without prefill launches. A "
        f"factor above 1 means that the effect costs {waterfall.over} more than {mode}. "
        f"'{EFFECT_WORDS[_bound_row(waterfall)]}' ends at the decode time_bound, "
        f"'{EFFECT_WORDS[DECODE]}' at the measured decode speed-up."
    )
    sizes = [f"{name} {_signed(error)}" for name, error in waterfall.curve_error.items()]
    if sizes:
        yield f"Decode launches measured in place against the stage curves: {', '.join(sizes)}."
    passes = {row.over_passes.n for row in waterfall.rows if row.over_passes is not None}
    if passes:
        yield (
            f"Rows that come from stage curves: the interval of a factor also holds what others "
            f"than these {max(passes)} passes over the stages would change (bootstrap)."
        )
    yield from waterfall.notes


def _signed(error: IntervalRecord) -> str:
    sign = "+" if (error.estimate or 0.0) > 0 else ""
    return sign + percent(error.estimate, error.low, error.high)


def _beyond(factor: IntervalRecord) -> bool:
    """Whether the curves' row is too large, and not merely what blocks and passes differ by."""
    if factor.estimate is None or abs(factor.estimate - 1) <= CURVE_LIMIT:
        return False
    return factor.low is None or factor.high is None or not factor.low <= 1 <= factor.high


def _meaning(row: WaterfallRow) -> str:
    factor, known = row.factor.estimate, row.known_factor
    if factor is None:
        return ""
    if row.effect == "loops_saved":
        return "loops of static / loops asked for"
    ends = [end for end in (known.low, known.high) if end is not None]
    if abs(factor - 1) < VISIBLE and all(abs(end - 1) < 2 * VISIBLE for end in ends):
        return "none"
    if _spread(known) and not (_lost(known) or _gained(known)):
        return "cannot be told from none"
    return f"{'loses' if factor < 1 else 'gains'} {percent(abs(factor - 1))}"


def _lost(factor: IntervalRecord, least: float = VISIBLE) -> bool:
    """Whether the factor is below 1 by ``least``, beyond its interval where it has one."""
    end = factor.estimate if factor.high is None else factor.high
    return end is not None and end < 1 and (factor.estimate or 1.0) < 1 - least


def _gained(factor: IntervalRecord) -> bool:
    end = factor.estimate if factor.low is None else factor.low
    return end is not None and end > 1 and (factor.estimate or 1.0) > 1 + VISIBLE


def _spread(interval: IntervalRecord) -> bool:
    """Whether blocks or passes differ: loops alone are the same in all."""
    if interval.low is None or interval.high is None or interval.estimate is None:
        return False
    return interval.high - interval.low > 1e-9 * interval.estimate


def factor_cell(row: WaterfallRow) -> Cell:
    """A row's factor as tables show it."""
    return _ratio_cell(row.known_factor)


def _ratio_cell(interval: IntervalRecord) -> Cell:
    if not _spread(interval):
        return Cell(interval.estimate, Kind.RATIO)
    return Cell(interval.estimate, Kind.RATIO, interval.low, interval.high)


def _size(factor: IntervalRecord) -> str:
    return percent(1 - (factor.estimate or 1.0))


def _listed(parts: Iterator[str]) -> str:
    *rest, last = [*parts] or [""]
    return f"{', '.join(rest)} and {last}" if rest else last
