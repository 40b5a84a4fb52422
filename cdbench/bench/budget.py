"""Whether the KV budget holds every request of a run: found out before the first one runs.

An engine refuses what its cache could never hold and goes on with the others, as a server does. In
a benchmark that would cost the time of everything else and leave a run that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cdbench.bench.live import positions_asked
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
    timed, asked = _timed(work), dict[int, _Longest | None]()
    lacking = [
        (shape.budget_for(longest.positions), subject.label, longest)
        for subject in _subjects(plan)
        for longest in (_longest(plan, subject, timed, asked),)
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


def _longest(
    plan: Plan, subject: Subject, timed: _Longest | None, asked: dict[int, _Longest | None]
) -> _Longest | None:
    """The longest request of the live pass and of equal work together.

    ``asked`` keeps the longest question by the model's identity: a question has the same tokens in
    all modes of one model.
    """
    model = id(subject.model)
    if "live" in plan.config.work and model not in asked:
        asked[model] = _most(
            _Longest(positions, f"question {name}")
            for name, positions in positions_asked(plan, subject)
        )
    return _most(one for one in (asked.get(model), timed) if one is not None)


def _timed(work: TimedWork | None) -> _Longest | None:
    if work is None:
        return None
    if work.recorded is None:
        return _most(_Longest(r.positions, f"workload request {r.id}") for r in work.requests)
    # As in the runtime, the last token is never fed back.
    return _most(
        _Longest(len(r.prompt) + len(r.tokens) - 1, f"workload request {r.id}")
        for r in work.recorded
    )


def _most(found: Iterable[_Longest]) -> _Longest | None:
    return max(found, key=lambda one: one.positions, default=None)


def _key(plan: Plan) -> str:
    return "kv.budget_bytes" if plan.config.kv.budget_fraction is None else "kv.budget_fraction"
