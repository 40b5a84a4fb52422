"""The receipt of a paired gate: its timed checks, NEW's floors, OLD's counts as the exact base."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdbench.compare.counted import COUNTED
from cdbench.compare.document import marks
from cdbench.compare.fairness import manifest_differences, setting_differences
from cdbench.compare.gate import closing, exact_check, verdict_of
from cdbench.compare.gate_file import WithinCheck
from cdbench.compare.gate_times import Key, invalid_check
from cdbench.compare.gate_within import Figure, judged_within
from cdbench.compare.pair.asked import Asked
from cdbench.compare.pair.seen import Seen, count_notes
from cdbench.machine.disturbance import disturbances
from cdbench.schema import IntervalRecord
from cdbench.schema.comparing import DifferenceRecord, SideRecord
from cdbench.schema.environment import RepeatEnvironment
from cdbench.schema.gating import GateCheck, GateReceipt, LookRecord
from cdbench.schema.pairing import PairRun, PairSide, Prepared, SideName
from cdbench.stats.blocks import geometric_mean, mean

UNFAIR_FACTS = frozenset({"device.runtime"})
"""Facts of the machine that come with a package: torch brings its own CUDA."""


@dataclass(frozen=True)
class Evidence:
    """Everything a receipt is made from. ``timed`` are the checks at the last look made."""

    asked: Asked
    sides: Mapping[SideName, PairSide]
    runs: Sequence[PairRun] = ()
    timed: Mapping[Key, GateCheck] = field(default_factory=dict)
    looks: Sequence[LookRecord] = ()
    invalid: Sequence[str] = ()
    notes: Sequence[str] = ()
    planned_pairs: int = 0


def make_receipt(evidence: Evidence) -> GateReceipt:
    """The verdict over all checks; a reason in ``invalid`` makes every check INVALID."""
    asked, seen = evidence.asked, Seen(evidence.runs)
    checks = list(_checks(evidence, seen))
    verdict, code = verdict_of(asked.gate, checks)
    remedy = "quieten the machine, or give the configuration more requests"
    return GateReceipt(
        gate=asked.gate.name,
        gate_sha256=asked.gate_sha256,
        verdict=verdict,
        exit_code=code,
        run=_side(evidence, "new", seen),
        base=_side(evidence, "old", seen),
        checks=checks,
        differences=differences(evidence.sides),
        looks=list(evidence.looks),
        notes=list(_notes(evidence, seen)),
        sentences=[
            *dict.fromkeys(closing(asked.gate, verdict, checks, remedy)),
            *_course(evidence, seen),
        ],
    )


def unfair(sides: Mapping[SideName, PairSide]) -> str | None:
    """Why times of these sides may not be compared, though they ran on one machine."""
    old, new = sides["old"].prepared, sides["new"].prepared
    assert old is not None, "asked after both are ready"
    assert new is not None, "asked after both are ready"
    if old.workload.hash != new.workload.hash:
        return (
            f"the sides were given other work: OLD's hash is {old.workload.hash[:12]}, NEW's "
            f"{new.workload.hash[:12]}"
        )
    for name, prepared in (("OLD", old), ("NEW", new)):
        if prepared.unequal:
            return f"{name}: {prepared.unequal[0]}"
    if (files := _other_files(old, new)) is not None:
        return f"the sides have other models: {files} differs"
    for found in manifest_differences(old.manifest, new.manifest):
        if found.effect == "machine" and found.what not in UNFAIR_FACTS:
            return f"the sides run under other conditions: {found.what} {found.base} → {found.run}"
    return None


def _other_files(old: Prepared, new: Prepared) -> str | None:
    """A model file that is not the same on both sides; None where there is none."""
    theirs = {model.name: model.files for model in old.manifest.models}
    for model in new.manifest.models:
        files = theirs.get(model.name, {})
        for name in dict.fromkeys((*files, *model.files)):
            if files.get(name) != model.files.get(name):
                return f"{model.name}/{name}"
    return None


def differences(sides: Mapping[SideName, PairSide]) -> list[DifferenceRecord]:
    """What the sides differ in: code, packages, and settings that a default decided."""
    old, new = sides["old"].prepared, sides["new"].prepared
    if old is None or new is None:
        return []
    return [
        *manifest_differences(old.manifest, new.manifest),
        *setting_differences(old.config, new.config),
    ]


def _checks(evidence: Evidence, seen: Seen) -> Iterator[GateCheck]:
    asked, why = evidence.asked, next(iter(evidence.invalid), None)
    for key in asked.keys:
        if why is None and key in evidence.timed:
            yield evidence.timed[key]
        else:
            yield invalid_check(key, why or "not measured")
    for mode in asked.gate.modes if asked.gate.exact else ():
        for name in asked.gate.exact:
            old, new = (sorted(set(seen.values(side, mode, name))) for side in ("old", "new"))
            varied = f"{name} of {mode} varies within OLD" if len(old) > 1 else None
            yield exact_check(mode, name, old[0] if old else None, new, why or varied, "OLD")
    for within in asked.within:
        yield judged_within(within, None if why else _figure(within, seen), why)


def _figure(asked: WithinCheck, seen: Seen) -> Figure | None:
    """A figure of NEW alone, over its pairs."""
    if asked.metric == "speedup":
        logs = seen.speedups("new", asked.mode, asked.over, asked.scope)
        found = geometric_mean(logs) if logs else None
        return None if found is None else Figure(IntervalRecord.of(found))
    values = seen.means("new", asked.mode, asked.metric)
    found = mean(values) if values else None
    if found is None or values is None:
        return None
    figure = Figure(IntervalRecord.of(found))
    return replace(figure, exact=True) if len(set(values)) == 1 else figure


def _side(evidence: Evidence, name: SideName, seen: Seen) -> SideRecord:
    side = evidence.sides[name]
    ready = side.prepared
    return SideRecord(
        name=f"{name.upper()} {side.python}",
        started_utc=ready.manifest.started_utc if ready is not None else "",
        verdict="INVALID" if evidence.invalid else "VALID",
        reasons=list(evidence.invalid),
        status="complete",
        model=ready.model.name if ready is not None else None,
        workload=ready.workload.hash if ready is not None else "",
        blocks=len(seen.pairs),
        marks=marks(ready.model, ready.workload) if ready is not None else [],
        rechecked=False,
    )


def _notes(evidence: Evidence, seen: Seen) -> Iterator[str]:
    yield from dict.fromkeys((*evidence.asked.notes, *evidence.notes))
    if seen.pairs:
        exact = set(evidence.asked.gate.exact)
        yield from count_notes(seen, evidence.asked.modes, COUNTED - exact)
    for name, side in evidence.sides.items():
        yield from _disturbed(name, side, evidence.runs)


def _disturbed(name: SideName, side: PairSide, runs: Sequence[PairRun]) -> list[str]:
    """What the machine did beside a side. It meets both, so it widens intervals and spoils none."""
    ready = side.prepared
    seen = [_alone(r.environment) for r in runs if r.side == name and r.environment is not None]
    if ready is None or not seen:
        return []
    found = disturbances(seen, ready.compute_threads)
    return [f"while {name.upper()} was timed, {why}" for why in (*found.reasons, *found.flags)]


def _alone(environment: RepeatEnvironment) -> RepeatEnvironment:
    """Without the other worker, which is on the GPU too, asleep."""
    gpu = environment.gpu
    if gpu is None or not gpu.foreign_processes:
        return environment
    fewer = gpu.model_copy(update={"foreign_processes": gpu.foreign_processes - 1})
    return environment.model_copy(update={"gpu": fewer})


def _course(evidence: Evidence, seen: Seen) -> Iterator[str]:
    if seen.pairs and evidence.planned_pairs:
        pairs = f"{len(seen.pairs)} of up to {evidence.planned_pairs} pairs"
        yield f"{pairs} were timed, A B B A, on the same work."
    old, new = evidence.sides["old"].hello, evidence.sides["new"].hello
    if old.source_sha256 == new.source_sha256:
        yield "Both sides run the same code: there was no change to judge."
    for mark in _marks(evidence.sides["new"]):
        yield f"{mark}."


def _marks(side: PairSide) -> list[str]:
    ready = side.prepared
    if ready is None:
        return []
    return [m for m in marks(ready.model, ready.workload) if not m.startswith("replayed")]
