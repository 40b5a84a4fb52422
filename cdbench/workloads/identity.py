"""The hash that says which work was done: prompts, forced tokens, depths, arrivals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from cdbench.runtime.core import Request
from cdbench.schema.workload import RecordedWork
from cdbench.workloads.arrival_times import ArrivalSchedule


def workload_hash(recorded: Iterable[RecordedWork], arrivals: ArrivalSchedule) -> str:
    """sha256 over prompts, forced tokens, recorded depths and arrivals, in order."""
    items = ([r.id, list(r.prompt), list(r.tokens), list(r.executed_depths)] for r in recorded)
    return _digest(items, arrivals)


def difference(
    requests: Sequence[Request], recorded: Sequence[RecordedWork], arrivals: ArrivalSchedule
) -> str | None:
    """How what a mode is given differs from the recorded workload; None where it is the same.

    The mode's own requests are hashed again. One that does not replay depths is held to the
    recorded prompts, tokens and arrivals only. A model with another vocabulary is not for this
    check: it has the same text in other tokens.
    """
    depths = {r.id: r.executed_depths for r in recorded}
    items = (
        [
            request.id,
            list(request.prompt),
            list(request.force or ()),
            list(request.replay_depths or depths.get(request.id, ())),
        ]
        for request in requests
    )
    own, wanted = _digest(items, arrivals), workload_hash(recorded, arrivals)
    if own == wanted:
        return None
    return (
        f"was given another workload than the recorded one (sha256 {own[:12]}, not {wanted[:12]})"
    )


def _digest(items: Iterable[list[Any]], arrivals: ArrivalSchedule) -> str:
    content = {"requests": list(items), "arrivals": arrivals.identity}
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
