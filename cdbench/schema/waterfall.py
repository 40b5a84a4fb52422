"""Where the gain went: from the loops saved to the measured speed-up, one effect a row."""

from __future__ import annotations

from pydantic import Field

from cdbench.schema.base import IntervalRecord, Measure, Record


class WaterfallRow(Record):
    """One effect. Rows follow one another, so that factors multiply out to the last speed-up."""

    effect: str = Field(
        description="loops_saved, boundary_stages, wider_launches (only where the mode held more "
        "requests than the baseline), exit_rule, wasted_loops, fill_and_drain, empty_rows, "
        "small_boundary_launches, stage_curves, host_time, prefill_and_first_tokens"
    )
    speedup: IntervalRecord = Field(
        description="S_i = T_over(i) / T_mode(i): the speed-up with the effects so far"
    )
    factor: IntervalRecord = Field(
        description="S_i / S_(i-1); above 1, the effect costs the baseline more than the mode"
    )
    over_passes: IntervalRecord | None = Field(
        None,
        description="the factor with other passes over the stages: 95 % bootstrap over those there "
        "were; null where it does not depend on them, or they were too few",
    )
    over_t: Measure = Field(
        description="T_over(i) of a run, mean: seconds; for loops_saved, token loops"
    )
    mode_t: Measure = Field(description="T_mode(i), likewise")


class Waterfall(Record):
    """One mode over ``static``, on equal work. Without rows, ``reason`` says why."""

    over: str = "static"
    rows: list[WaterfallRow] = Field(default_factory=list)
    reason: str | None = Field(None, description="why there are no rows; null where there are")
    curve_error: dict[str, IntervalRecord] = Field(
        default_factory=dict,
        description="mode → its decode launches' time measured in place / on the stage curves - 1",
    )
    notes: list[str] = Field(default_factory=list)
