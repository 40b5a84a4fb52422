"""Whether a run's numbers may be used: VALID, or INVALID with every reason; and what to mind.

A *reason* is something that makes a number wrong, or not comparable: work that was unequal, a
machine that did something else meanwhile, code that changed. A *flag* is something a reader must
know to read a number rightly. ``judge`` only weighs what it is told: gathering the facts is the
run's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cdbench.machine.disturbance import disturbances
from cdbench.metrics.percentiles import minimum_samples
from cdbench.schema.environment import RepeatEnvironment
from cdbench.schema.result import Validity
from cdbench.stats.blocks import MIN_BLOCKS

LENGTH_DRIFT = 0.10
"""A live mean output length this far from static's is flagged: less text is not speed."""

SHOWN_PERCENTILES = (50, 90, 95, 99)

_MOST_NAMES = 3

DepthsFrom = Literal["live", "trace", "synthetic"]


@dataclass(frozen=True)
class TimedFacts:
    """What is known of the timed part. ``requests``: distinct requests of the workload.

    ``shows_latency``: whether latencies mean something (no all-at-once arrivals) or are held
    against a limit, so that percentiles are looked for. ``depths_from``: where the depths that
    adaptive modes ran came from: a live pass of this run, a trace, or a distribution.
    """

    blocks: int
    requests: int
    unequal: Sequence[str] = ()
    broken_identities: Sequence[str] = ()
    random_prompts: bool = False
    depths_from: DepthsFrom = "live"
    shows_latency: bool = False


@dataclass(frozen=True)
class RunFacts:
    """Everything a verdict depends on.

    ``live_errors`` and ``refused`` are the errors of requests that the live pass of a mode, or the
    recorded run, could not serve. ``length_ratios``: mean live output length over static's, by
    mode. ``changed_sources`` and ``changed_models``: files that changed during the run.
    ``environment``: the machine during each timed repeat, on ``compute_threads`` threads.
    ``reasons`` and ``flags`` are added as they are: what other parts found. ``timed`` is None where
    no equal work was asked for.
    """

    interrupted: bool = False
    live_errors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Sequence[str] = ()
    timed: TimedFacts | None = None
    length_ratios: Mapping[str, float] = field(default_factory=dict)
    changed_sources: Sequence[str] = ()
    changed_models: Sequence[str] = ()
    environment: Sequence[RepeatEnvironment] = ()
    compute_threads: int = 1
    reasons: Sequence[str] = ()
    flags: Sequence[str] = ()


def judge(facts: RunFacts) -> Validity:
    """VALID, or INVALID with every reason; flags either way. Each sentence is said once."""
    machine = disturbances(facts.environment, facts.compute_threads)
    timed = None if facts.interrupted else facts.timed
    timing = [*(_too_few_blocks(timed) if timed is not None else ()), *machine.reasons]
    reasons = [
        *_unfinished(facts),
        *_failures(facts),
        *(_timed(timed) if timed is not None else ()),
        *(captured_meanwhile(facts.environment) if timed is not None else ()),
        *_changed_files(facts),
        *timing,
        *facts.reasons,
    ]
    flags = [*_flags(facts), *machine.flags, *facts.flags]
    return Validity(
        verdict="INVALID" if reasons else "VALID",
        reasons=list(dict.fromkeys(reasons)),
        flags=list(dict.fromkeys(flags)),
        timing=list(dict.fromkeys(timing)),
    )


def _unfinished(facts: RunFacts) -> list[str]:
    return ["the run was interrupted before it was complete"] if facts.interrupted else []


def _failures(facts: RunFacts) -> list[str]:
    reasons = [
        f"live {mode}: {_count(errors, 'request')} refused ({errors[0]})"
        for mode, errors in facts.live_errors.items()
        if errors
    ]
    if facts.refused:
        count = _count(facts.refused, "workload request")
        reasons.append(f"{count} refused ({facts.refused[0]})")
    return reasons


def _timed(timed: TimedFacts) -> list[str]:
    reasons = [*timed.unequal, *timed.broken_identities]
    if timed.requests == 0:
        reasons.append("the workload has no request, so nothing was timed")
    if timed.random_prompts and timed.depths_from == "live":
        reasons.append(
            "the prompts are random token ids, which change where a model exits; use text, or "
            "replay depths recorded on text"
        )
    return reasons


def captured_meanwhile(repeats: Sequence[RepeatEnvironment]) -> list[str]:
    """Why timed regions with captures in them cannot stand: one takes as long as many launches."""
    captures = sum(repeat.captures or 0 for repeat in repeats)
    if not captures:
        return []
    were = "graph was" if captures == 1 else "graphs were"
    return [f"{captures} {were} captured inside a timed region; warm up longer"]


def _too_few_blocks(timed: TimedFacts) -> list[str]:
    if timed.blocks >= MIN_BLOCKS:
        return []
    were = "block was" if timed.blocks == 1 else "blocks were"
    return [f"{timed.blocks} {were} timed; an interval needs {MIN_BLOCKS}"]


def _changed_files(facts: RunFacts) -> list[str]:
    reasons = []
    if facts.changed_sources:
        reasons.append(
            f"cdbench changed while it ran ({_names(facts.changed_sources)}): versions are mixed; "
            "leave it alone and run again"
        )
    if facts.changed_models:
        reasons.append(
            f"model files changed during the run ({_names(facts.changed_models)}); leave them "
            "alone and run again"
        )
    return reasons


def _flags(facts: RunFacts) -> list[str]:
    flags = [
        f"{mode}: its own outputs are {ratio:.2f} times as long as static's"
        for mode, ratio in facts.length_ratios.items()
        if abs(ratio - 1) > LENGTH_DRIFT
    ]
    timed = facts.timed
    if timed is None:
        return flags
    if timed.random_prompts and timed.depths_from != "live":
        flags.append("the prompts are random token ids; their depths are not their own")
    if timed.depths_from == "synthetic":
        flags.append("synthetic depths: drawn from a distribution, not from this model's exits")
    if timed.shows_latency and timed.requests > 0:
        flags += _missing_percentiles(timed.requests)
    return flags


def _missing_percentiles(requests: int) -> list[str]:
    """Which percentiles so few requests cannot show."""
    missing = [q for q in SHOWN_PERCENTILES if requests < minimum_samples(q)]
    if not missing:
        return []
    names = ", ".join(f"p{q} ({minimum_samples(q):,})" for q in missing)
    return [f"{_many(requests, 'request')} are too few for the percentiles {names}"]


def _count(items: Sequence[str], what: str) -> str:
    were = "was" if len(items) == 1 else "were"
    return f"{_many(len(items), what)} {were}"


def _many(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown
