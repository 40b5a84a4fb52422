"""What two runs differ in beside their numbers, and which of it makes comparing them unfair.

Other *work* (prompts, tokens, depths, models): no ratio of times is formed, since it would be a
ratio of the work. Another *machine*: ratios are shown and marked, without a verdict. Another
*setting* or other *code* is what one compares runs for; both at once are said to be both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdbench.bench.again import flat, manifest_facts, short
from cdbench.compare.effective import effective_config
from cdbench.schema import Manifest, Result
from cdbench.schema.comparing import DifferenceRecord, Effect

BESIDE = frozenset({"out", "stages", "repeats"})
"""Keys that say where to write and how long to measure."""
OF_ANSWERS = frozenset({"tasks", "limit", "evaluation", "work"})
"""Keys that decide what is asked; whether both were asked the same is told by a hash."""
UNKNOWN = "no such key"
"""Of a key that the other version did not have."""
MACHINE = (
    "cpu",
    "device",
    "ram_bytes",
    "platform",
    "torch_threads",
    "torch_interop_threads",
    "env",
)
CODE = ("cdbench_version", "git", "source_sha256", "python", "packages")


def differences_of(base: Result, run: Result) -> list[DifferenceRecord]:
    """Everything that two runs differ in, the most serious first."""
    found = [
        *_work(base, run),
        *manifest_differences(base.manifest, run.manifest),
        *setting_differences(
            effective_config(base.config, base), effective_config(run.config, run)
        ),
    ]
    order = list(Effect.__args__)  # type: ignore[attr-defined]
    return sorted(found, key=lambda difference: order.index(difference.effect))


def _work(base: Result, run: Result) -> Iterator[DifferenceRecord]:
    timed = bool(base.blocks) and bool(run.blocks)
    if timed and base.workload.hash != run.workload.hash:
        yield _record("workload", base.workload.hash, run.workload.hash, "work")
    if timed and base.workload.synthetic != run.workload.synthetic:
        yield _record("synthetic depths", base.workload.synthetic, run.workload.synthetic, "work")
    seeds = [r.model.random_weights_seed if r.model is not None else None for r in (base, run)]
    if seeds[0] != seeds[1]:
        yield _record("random weights, seed", seeds[0], seeds[1], "work")
    names = [r.model.name if r.model is not None else None for r in (base, run)]
    if names[0] != names[1]:
        yield _record("model", names[0], names[1], "work")
    theirs = {model.name: model.files for model in base.manifest.models}
    for model in run.manifest.models:
        files = theirs.get(model.name, model.files)
        for name in dict.fromkeys((*files, *model.files)):
            if files.get(name) != model.files.get(name):
                yield _record(
                    f"{model.name}/{name}", files.get(name), model.files.get(name), "work"
                )


def manifest_differences(base: Manifest, run: Manifest) -> Iterator[DifferenceRecord]:
    """What two manifests differ in: machine and code."""
    theirs, ours = manifest_facts(base), manifest_facts(run)
    for name in dict.fromkeys((*theirs, *ours)):
        if name not in theirs or name not in ours or theirs[name] == ours[name]:
            continue  # what either does not know is no difference
        effect = _effect(name)
        if effect is not None:
            yield _record(name, theirs[name], ours[name], effect)
    yield from _env(base.env, run.env)


def _env(base: Mapping[str, str], run: Mapping[str, str]) -> Iterator[DifferenceRecord]:
    for name in dict.fromkeys((*base, *run)):
        if base.get(name) != run.get(name):
            yield _record(name, base.get(name), run.get(name), "machine")


def _effect(name: str) -> Effect | None:
    part = name.partition(".")[0]
    if part in MACHINE:
        return "machine"
    return "code" if part in CODE else None


def setting_differences(
    base: Mapping[str, Any], run: Mapping[str, Any]
) -> Iterator[DifferenceRecord]:
    """Keys of two configurations that have other values."""
    theirs, ours = dict(flat(base)), dict(flat(run))
    for key in dict.fromkeys((*theirs, *ours)):
        section = key.partition(".")[0]
        if section in BESIDE or theirs.get(key) == ours.get(key):
            continue
        effect: Effect = "questions" if section in OF_ANSWERS else "setting"
        yield _record(key, theirs.get(key, UNKNOWN), ours.get(key, UNKNOWN), effect)


def _record(what: str, base: Any, run: Any, effect: Effect) -> DifferenceRecord:
    return DifferenceRecord(what=what, base=short(base), run=short(run), effect=effect)
