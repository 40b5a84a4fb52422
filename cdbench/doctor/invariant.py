"""A check as the examination runs it: what it finds, and what verdict that makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from pydantic import JsonValue

from cdbench.doctor.comparison import Comparison, in_words
from cdbench.doctor.document import Check, Difference, Verdict
from cdbench.doctor.services import Services
from cdbench.errors import UsageError


@dataclass
class Found:
    """What a check found. ``skipped`` says why it does not apply, ``broken`` what is wrong."""

    comparison: Comparison | None = None
    figures: dict[str, JsonValue] = field(default_factory=dict)
    skipped: str | None = None
    broken: str | None = None


@dataclass(frozen=True)
class Invariant:
    """A check by its name, and what it compares.

    ``rounds`` is about how often it serves the requests, for the progress bar.
    """

    name: str
    compares: str
    find: Callable[[Services], Found]
    rounds: int = 1


def run_check(invariant: Invariant, services: Services) -> Check:
    """Run one check. An exception on the way is a failure of the check, not of the examination.

    UsageError where the memory of this machine does not do.
    """
    try:
        found = invariant.find(services)
    except UsageError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise UsageError(
            f"doctor: check {invariant.name}: out of memory ({error}); lower --requests or "
            "--max-new-tokens, or use a smaller --dtype"
        ) from None
    except Exception as error:
        found = Found(broken=f"{type(error).__name__}: {error}")
    return Check(
        name=invariant.name,
        compares=invariant.compares,
        verdict=_verdict(found),
        figures={**_figures(found.comparison), **found.figures},
        first_difference=_first(found.comparison),
        detail=_detail(found),
    )


def not_run(invariant: Invariant, why: str) -> Check:
    """A check that could not be made."""
    return Check(
        name=invariant.name, compares=invariant.compares, verdict="not applicable", detail=why
    )


def _verdict(found: Found) -> Verdict:
    comparison = found.comparison
    if found.broken is not None or (comparison is not None and comparison.wrong):
        return "fail"
    if found.skipped is not None:
        return "not applicable"
    return "rounding" if comparison is not None and comparison.by_rounding else "pass"


def _figures(comparison: Comparison | None) -> dict[str, JsonValue]:
    if comparison is None:
        return {}
    return {
        "services": comparison.services,
        "requests": comparison.requests,
        "tokens": comparison.tokens,
        "changed": len(comparison.by_rounding) + len(comparison.wrong),
        "near_ties": comparison.near_ties,
        "largest_logprob_gap": comparison.logprob_gap,
    }


def _first(comparison: Comparison | None) -> Difference | None:
    if comparison is None:
        return None
    return next(iter([*comparison.wrong, *comparison.by_rounding]), None)


def _detail(found: Found) -> str | None:
    if found.broken is not None:
        return found.broken
    if found.comparison is not None and found.comparison.wrong:
        return in_words(found.comparison.wrong[0])
    return found.skipped
