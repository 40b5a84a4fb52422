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
        description="the factor with other passes over the stages: a bootstrap over those there "
        "were; null where it does not depend on them, or they were too few",
    )
    over_t: Measure = Field(
        description="T_over(i) of a run, mean: seconds; for loops_saved, token loops"
    )
    mode_t: Measure = Field(description="T_mode(i), likewise")

    @property
    def known_factor(self) -> IntervalRecord:
        """The factor with all that is known of how far it may be off: blocks, and passes.

        With too few blocks for an interval it is that of the passes alone, but for the curves' own
        row, whose launches in place say nothing certain then.
        """
        spread, factor = self.over_passes, self.factor
        if spread is None or not _is_ratio(spread) or not factor.estimate:
            return factor
        if factor.low is None and factor.high is None and self.effect != "stage_curves":
            return spread.model_copy(update={"estimate": factor.estimate})
        if not _is_ratio(factor):
            return factor
        try:
            return IntervalRecord.of(factor.to_interval().widened(spread.to_interval()))
        except OverflowError:  # ends that no measurement has
            return factor


def _is_ratio(interval: IntervalRecord) -> bool:
    """Whether estimate and ends are there, and above 0."""
    ends = (interval.estimate, interval.low, interval.high)
    return all(x is not None and x > 0 for x in ends)


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
