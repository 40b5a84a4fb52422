"""Whether the files of a run belong together: what no summary could be made of is found first."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.bench.raw import ContradictionError, RawRun
from cdbench.schema import WORKLOAD_FILE, Result


def check_consistent(result: Result, raw: RawRun) -> None:
    """Raise ContradictionError where loops, facts or the workload are impossible."""
    for find in (_impossible_loops, _unlike_facts, _impossible_workload):
        for why in find(result, raw):
            raise ContradictionError(why)


def _impossible_loops(result: Result, raw: RawRun) -> Iterator[str]:
    """Every mode has one R, at least 1 and no more than the model's, which a dense one is not."""
    most = result.model.max_loops if result.model is not None else None
    for label, mode in result.modes.items():
        said = f"mode {label}: result.json says up to {mode.max_loops} loops"
        if mode.max_loops < 1:
            yield said
        if most is not None and mode.max_loops > most and not label.startswith("dense:"):
            yield f"{said}, the model has {most}"
        for line in raw.lines:
            if line.mode == label and line.max_loops != mode.max_loops:
                yield f"{said}, block {line.block} has {line.max_loops}"


def _unlike_facts(result: Result, raw: RawRun) -> Iterator[str]:
    """A mode is the same in every block, and as it is said to be."""
    for line in raw.lines:
        if line.facts != raw.facts[line.mode]:
            yield f"mode {line.mode}: its facts in block {line.block} are not those of others"
        mode = result.modes.get(line.mode)
        for name in ("width", "max_residents"):
            said, had = getattr(mode, name, None), getattr(line, name)
            if said is not None and said != had:
                yield f"mode {line.mode}: result.json says {name} {said}, block {line.block} {had}"


def _impossible_workload(result: Result, raw: RawRun) -> Iterator[str]:
    """Timed runs have one, and each of its tokens one depth that some mode could run."""
    if raw.repeats and not raw.workload:
        yield f"{WORKLOAD_FILE} has no whole line, but {len(raw.repeats)} runs were timed"
    most = _most_loops(result)
    for record in raw.workload:
        depths = (record.executed_depths, record.requested_depths)
        if any(len(each) != len(record.tokens) for each in depths):
            yield f"{WORKLOAD_FILE}: request {record.id}: not every token has its depths"
        if any(not 1 <= depth <= most for each in depths for depth in each):
            yield f"{WORKLOAD_FILE}: request {record.id}: a depth lies outside 1…{most}"


def _most_loops(result: Result) -> int:
    """R of the recorded run."""
    if result.model is not None:
        return result.model.max_loops
    return max((mode.max_loops for mode in result.modes.values()), default=1)
