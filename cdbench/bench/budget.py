"""Whether the KV budget holds every request of a run: found out before the first one runs.

An engine refuses what its cache could never hold and goes on with the others, as a server does. In
a benchmark that would cost the time of everything else and leave a run that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdbench.bench.live import questions, requests_for
from cdbench.bench.plan import Plan, Subject
from cdbench.bench.workload import TimedWork
from cdbench.errors import UsageError
from cdbench.grammar import Mode


@dataclass(frozen=True)
class _Longest:
    """The request of one mode that comes to occupy most positions."""

    positions: int
    where: str


def check_budget(plan: Plan, work: TimedWork | None) -> None:
    """Raise UsageError where some mode's cache could never hold one of its requests.

    The longest request counts, at the length that it may come to and at full depth: as long and as
    deep as an engine must be ready for. The mode that needs most is named.
    """
    budget = plan.kv_budget_bytes
    if budget is None:
        return
    lacking = [
        (shape.budget_for(longest.positions), subject.label, longest)
        for subject in _subjects(plan)
        for longest in (_longest(plan, subject, work),)
        for shape in (plan.cache_shape(subject),)
        if longest is not None and shape.holds(budget) < longest.positions
    ]
    if not lacking:
        return
    needed, label, longest = max(lacking, key=lambda found: found[0])
    raise UsageError(
        f"kv budget: {budget:,} bytes a mode do not hold {longest.where}, the longest: mode "
        f"{label} keeps up to {longest.positions:,} positions of it at full depth, which takes a "
        f"budget of {needed:,}; raise {_key(plan)} or shorten the requests"
    )


def _subjects(plan: Plan) -> Iterator[Subject]:
    """Every mode; ``static@auto``, whose depth is not known yet, needs ``static``'s at most."""
    for mode in plan.modes:
        yield plan.subject(Mode("static") if mode.depth == "auto" else mode, str(mode))
    if "equal" in plan.config.work:
        yield plan.subject(Mode("cdb"))  # records the tokens where no mode of the run has


def _longest(plan: Plan, subject: Subject, work: TimedWork | None) -> _Longest | None:
    """The longest request of the live pass and of equal work together."""
    found: list[_Longest] = []
    if "live" in plan.config.work:
        found += (
            _Longest(request.positions, f"question {request.id}")
            for request in requests_for(plan, subject, questions(plan))
        )
    if work is not None and work.recorded is not None:
        # As in the runtime, the last token is never fed back.
        found += (
            _Longest(len(r.prompt) + len(r.tokens) - 1, f"workload request {r.id}")
            for r in work.recorded
        )
    elif work is not None:
        found += (_Longest(r.positions, f"workload request {r.id}") for r in work.requests)
    return max(found, key=lambda one: one.positions, default=None)


def _key(plan: Plan) -> str:
    return "kv.budget_bytes" if plan.config.kv.budget_fraction is None else "kv.budget_fraction"
