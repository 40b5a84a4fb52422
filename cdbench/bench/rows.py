"""One mode's part of the result: how it ran, its figures, and what must be said beside them."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.figures import length_ratio, mode_figures
from cdbench.bench.measurements import Measurements
from cdbench.bench.plan import UNROLLED, Plan, Subject
from cdbench.bench.repeats import StoredRepeat
from cdbench.bench.validity import LENGTH_DRIFT
from cdbench.runtime.core import ExitPolicy
from cdbench.schema import ExitSettings, ModeResult
from cdbench.stats.blocks import LEVEL


def exit_settings(policy: ExitPolicy) -> ExitSettings:
    """The exit policy as the result records it."""
    return ExitSettings(
        rule=policy.rule,
        threshold=policy.threshold,
        min_loops=policy.min_loops,
        lag=policy.lag,
        depth=policy.depth,
        lookahead=None if policy.lookahead is None else str(policy.lookahead),
        lookahead_sha256=None if policy.lookahead is None else policy.lookahead.sha256,
    )


def mode_result(
    plan: Plan,
    measured: Measurements,
    label: str,
    runs: Sequence[StoredRepeat] = (),
    level: float = LEVEL,
) -> ModeResult:
    """One mode's row: its numbers, from the timed ``runs`` of all modes, and how it ran."""
    subject = measured.subjects[label]
    figures = mode_figures(label, runs, measured.live, subject.max_loops, level)
    trace = next((run.trace for run in runs if run.trace.mode == label), None)
    return ModeResult(
        schedule=subject.mode.kind,
        model=subject.model.name,
        exit=exit_settings(subject.policy),
        max_loops=subject.max_loops,
        width=trace.width if trace is not None else None,
        max_residents=trace.max_residents if trace is not None else None,
        note=_note(plan, measured, subject),
        **vars(figures),
    )


def _note(plan: Plan, measured: Measurements, subject: Subject) -> str | None:
    notes = []
    auto = measured.auto
    if subject.label == "static@auto" and auto is not None:
        tried = ", ".join(
            f"{d} loop{'s' if d > 1 else ''} {share:.1%}" for d, share in auto.tried.items()
        )
        if not auto.chosen_on:
            notes.append(
                "no question is right or wrong, so no depth was chosen: static@auto is static"
            )
        elif auto.depth == plan.max_loops:
            notes.append(
                f"on {auto.chosen_on} questions no smaller fixed depth is within 1 point of full "
                f"depth ({auto.full_accuracy:.1%}; smaller: {tried or 'none'}): static@auto is "
                "static, judged on the other questions and not timed twice"
            )
        else:
            notes.append(
                f"static@{auto.depth}, chosen on {auto.chosen_on} questions ({tried}; full depth "
                f"{auto.full_accuracy:.1%}) and judged on the others"
            )
    if subject.label in measured.characters_per_token:
        notes.append(
            f"another vocabulary: the same text cut or repeated to the same token counts, "
            f"{measured.characters_per_token[subject.label]:.2f} characters per token"
        )
    if subject.label in measured.schedule_notes:
        notes.append(measured.schedule_notes[subject.label])
    if subject.mode.dense == UNROLLED:
        notes.append(
            f"the same model with {plan.max_loops} copies of its core: what it would cost if its "
            "loops did not share weights"
        )
    if subject.model.weight_seed is not None:
        notes.append(f"random weights (seed {subject.model.weight_seed})")
    passed = measured.live.get(subject.label)
    drift = length_ratio(passed, measured.live.get("static")) if passed else None
    if drift is not None and abs(drift - 1) > LENGTH_DRIFT:
        notes.append(f"its own outputs are {drift:.2f} times as long as static's")
    return "; ".join(notes) or None
