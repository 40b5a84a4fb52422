"""A gate judges one run: alone, against baselines, or against another run.

FAIL needs evidence, and so does PASS; what has neither is INCONCLUSIVE. A check that the run cannot
answer at all (it is INVALID, did other work, ran on another machine) is INVALID and judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdbench.compare.counted import COUNTED
from cdbench.compare.document import side_record
from cdbench.compare.fairness import differences_of
from cdbench.compare.gate_file import ANSWERS, GateFile
from cdbench.compare.gate_times import timed_checks
from cdbench.compare.gate_within import within_check
from cdbench.compare.sides import Side
from cdbench.schema.comparing import DifferenceRecord
from cdbench.schema.gating import BaselineMode, ExactBaseline, GateCheck, GateReceipt, GateVerdict

EXIT_CODES: dict[GateVerdict, int] = {"PASS": 0, "FAIL": 1, "INVALID": 3, "INCONCLUSIVE": 5}
ORDER: tuple[GateVerdict, ...] = ("FAIL", "INVALID", "INCONCLUSIVE", "PASS")
"""The first of these that some check has is the gate's verdict."""


@dataclass(frozen=True)
class Bases:
    """What a run is held against: another run, or baselines by their file names."""

    exact: ExactBaseline | None = None
    timed: Side | None = None
    files: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def judge_run(gate: GateFile, sha256: str, run: Side, bases: Bases) -> GateReceipt:
    """The receipt of a gate on a stored run."""
    differences = differences_of(bases.timed.result, run.result) if bases.timed is not None else []
    checks = [
        *_mode_checks(gate, run),
        *_exact_checks(gate, run, bases.exact),
        *_timed(gate, run, bases.timed, differences),
        *(_within(gate, run)),
    ]
    return receipt(gate, sha256, run, bases, checks, differences)


def receipt(
    gate: GateFile,
    sha256: str,
    run: Side,
    bases: Bases,
    checks: Sequence[GateCheck],
    differences: Sequence[DifferenceRecord] = (),
) -> GateReceipt:
    """The verdict over all checks, and the code that the process ends with."""
    verdict, code = verdict_of(gate, checks)
    return GateReceipt(
        gate=gate.name,
        gate_sha256=sha256,
        verdict=verdict,
        exit_code=code,
        run=side_record(run),
        base=side_record(bases.timed) if bases.timed is not None else None,
        baselines=dict(bases.files),
        checks=list(checks),
        differences=list(differences),
        notes=list(bases.notes),
        sentences=list(closing(gate, verdict, checks)),
    )


def verdict_of(gate: GateFile, checks: Sequence[GateCheck]) -> tuple[GateVerdict, int]:
    """The verdict over all checks, and the exit code that stands for it."""
    found = {check.verdict for check in checks}
    verdict: GateVerdict = next((each for each in ORDER if each in found), "PASS")
    code = EXIT_CODES[verdict]
    if verdict == "INCONCLUSIVE" and gate.inconclusive == "pass":
        code = 0
    return verdict, code


def closing(
    gate: GateFile,
    verdict: GateVerdict,
    checks: Sequence[GateCheck],
    remedy: str = "measure more blocks",
) -> Iterator[str]:
    """The plain last lines. ``remedy``: what to do where nothing could be told."""
    if verdict == "PASS":
        count = f"{len(checks)} checks hold" if len(checks) != 1 else "its one check holds"
        yield f"PASS: {count}." if checks else "PASS: there was nothing to check it against."
        return
    for check in checks:
        if check.verdict == verdict:
            yield f"{verdict}: {check.why}."
    if verdict == "INCONCLUSIVE":
        yield (
            "Inconclusive passes this gate."
            if gate.inconclusive == "pass"
            else f"This gate does not pass what it cannot tell: {remedy}."
        )


def _mode_checks(gate: GateFile, run: Side) -> Iterator[GateCheck]:
    for label in gate.modes:
        ran = label in run.result.modes
        yield GateCheck(
            name=f"mode: {label}",
            kind="mode",
            mode=label,
            verdict="PASS" if ran else "FAIL",
            why=f"mode {label} {'ran' if ran else 'is required and did not run'}",
        )


def spoiled(run: Side, *, times: bool) -> str | None:
    """Why a run cannot be judged; reasons that spoil times alone leave counts and answers."""
    validity = run.result.validity
    if validity.verdict == "VALID":
        return None
    reasons = validity.reasons if times else validity.beyond_times
    return f"{run.name} is INVALID ({reasons[0]})" if reasons else None


def _exact_checks(gate: GateFile, run: Side, base: ExactBaseline | None) -> Iterator[GateCheck]:
    if base is None:
        return
    spoilt = spoiled(run, times=False) or _other_work(run, base)
    for label in gate.modes:
        mode = base.modes.get(label)
        why = spoilt or (_other_sizes(label, run, mode) if mode is not None else None)
        for name in gate.exact:
            expected = mode.exact.get(name) if mode is not None else None
            values = counts_of(run, label, name)
            yield exact_check(label, name, expected, values, why)


def counts_of(run: Side, label: str, name: str) -> list[float]:
    """A count in every timed run of a mode: a mean over a block's two would hide that they vary."""
    runs = [each.metrics.get(name) for each in run.result.blocks if each.mode == label]
    return [value for value in runs if value is not None]


def _other_work(run: Side, base: ExactBaseline) -> str | None:
    ours = run.result.workload.hash
    if ours != base.workload:
        return (
            f"the workload {ours[:12]} is not the baseline's {base.workload[:12]}: other work; "
            "promote a new baseline"
        )
    for model in run.result.manifest.models:
        if base.model_files.get(model.name, model.files) != model.files:
            return f"model {model.name} has other files than the baseline's; promote a new one"
    return None


def _other_sizes(label: str, run: Side, base: BaselineMode) -> str | None:
    own = run.result.modes.get(label)
    for name in ("max_loops", "width", "max_residents"):
        was, has = getattr(base, name), getattr(own, name, None)
        if own is not None and was != has:
            return f"{label} ran with {name} {has}, the baseline with {was}: promote a new one"
    return None


def exact_check(
    label: str,
    name: str,
    expected: float | None,
    values: Sequence[float],
    why: str | None = None,
    base: str = "the baseline",
) -> GateCheck:
    """Whether a count is what ``base`` has, to the digit. ``why``: it cannot be judged, if so."""
    seen = sorted(set(values))
    found = seen[0] if seen else None
    check = GateCheck(
        name=f"exact: {label} {name}",
        kind="exact",
        verdict="PASS",
        why="",
        mode=label,
        metric=name,
        base=expected,
        run=found,
    )
    verdict: GateVerdict = "PASS"
    words = f"{name} of {label} is {_number(found)}"
    if why is not None:
        verdict, words = "INVALID", why
    elif expected is None and found is None:
        words = f"{name} of {label} is undefined on both sides"
    elif expected is None:
        verdict, words = "INVALID", f"{base} has no {name} of {label}; promote a new one"
    elif found is None:
        verdict, words = "INVALID", f"{name} of {label} was not measured"
    elif len(seen) > 1:
        verdict = "FAIL"
        words = (
            f"{name} of {label} varied between blocks, {_number(seen[0])} to {_number(seen[-1])}"
        )
    elif found != expected:
        verdict, words = "FAIL", f"{words}, {base} has {_number(expected)}"
    return check.model_copy(update={"verdict": verdict, "why": words})


def _number(value: float | None) -> str:
    """Every digit there is: what is compared to the digit is shown to the digit."""
    if value is None:
        return "n/a"
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _timed(
    gate: GateFile, run: Side, base: Side | None, differences: Sequence[DifferenceRecord]
) -> list[GateCheck]:
    if base is None or not gate.timed.metrics:
        return []
    why = spoiled(run, times=True) or spoiled(base, times=True)
    for effect, words in (("work", "other work"), ("machine", "another machine")):
        named = [d.what for d in differences if d.effect == effect]
        if why is None and named:
            why = f"{words} ({', '.join(named[:3])})"
    return timed_checks(gate, base, run, why)


def _within(gate: GateFile, run: Side) -> Iterator[GateCheck]:
    for asked in gate.within:
        times = asked.metric not in (*ANSWERS, *COUNTED)
        yield within_check(asked, run, spoiled(run, times=times))
