"""A stored run judged again: what its raw records alone hold against it.

Some reasons leave no record (files that changed, requests that could not be recorded); the verdict
may say more than is found here, but never less.
"""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.bench.raw import RawRun
from cdbench.bench.validity import RunFacts, TimedFacts, judge
from cdbench.bench.verdict_facts import live_errors, timed_facts
from cdbench.metrics.identities import broken_identities
from cdbench.schema import Result


def verdict_errors(result: Result, raw: RawRun) -> list[str]:
    """Reasons that the verdict leaves out, and a verdict that is not that of its reasons.

    Raises:
        ContradictionError: the records of the machine are not readable.
    """
    said = result.validity.reasons
    missing = [why for why in _reasons(result, raw) if why not in said]
    found = [f"validity.reasons: result.json lacks {why!r}" for why in missing]
    if (result.validity.verdict == "INVALID") != bool(said):
        count = f"{len(said)} reasons" if len(said) != 1 else "1 reason"
        found.append(f"validity.verdict: {result.validity.verdict} with {count}")
    return found


def compute_threads(result: Result) -> int:
    """Threads that the run computed on, as it recorded them."""
    return 1 if result.environment is None else result.environment.compute_threads


def _reasons(result: Result, raw: RawRun) -> Iterator[str]:
    """Of ``judge`` itself; and broken identities of a run that was interrupted before it asked."""
    facts = RunFacts(
        interrupted=result.status == "interrupted",
        live_errors=live_errors(raw.passes),
        timed=_timed_facts(raw) if _asks_equal_work(result, raw) else None,
        environment=raw.environments,
        compute_threads=compute_threads(result),
    )
    reasons = judge(facts).reasons
    broken = (why for run in raw.repeats for why in broken_identities(run.trace))
    yield from dict.fromkeys((*reasons, *broken))


def _timed_facts(raw: RawRun) -> TimedFacts:
    facts = raw.facts
    return timed_facts(
        raw.repeats,
        raw.workload,
        adaptive={mode for mode, known in facts.items() if known.adaptive},
        # Whether a dense model has the same vocabulary is not recorded: counts must agree.
        own_vocabulary={mode for mode, known in facts.items() if known.dense},
    )


def _asks_equal_work(result: Result, raw: RawRun) -> bool:
    work = result.config.get("work")
    return bool(raw.repeats) or (isinstance(work, list) and "equal" in work)
