"""What has to be said about a recorded workload's text: what voids a run, and what does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdbench.bench.equal import RecordedRequest
from cdbench.bench.plan import Plan
from cdbench.bench.selection import shortfall
from cdbench.bench.workload import TimedWork
from cdbench.grammar import parse_depths
from cdbench.runtime.core import FinishReason, RequestResult
from cdbench.workloads import health


@dataclass(frozen=True)
class Findings:
    """What is wrong with a workload's text: reasons that void the run, and flags that do not."""

    invalid: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def findings(
    plan: Plan,
    work: TimedWork,
    recorded: Sequence[RecordedRequest],
    results: Mapping[str, RequestResult] | None,
) -> Findings:
    """What is wrong with the text of a recorded workload.

    ``results`` are those of the recorded run, None where a trace file has it.
    """
    invalid, flags = [], []
    synthetic = parse_depths(plan.config.workload.depths).synthetic
    if work.random_prompts and plan.trace is None and not synthetic:
        invalid.append(
            "the prompts are random token ids and their exit depths are the model's own: depths on "
            "no text mean nothing; replay recorded ones"
        )
    vocabulary = plan.model.network.dims.vocab_size
    if not (work.random_prompts or synthetic) and health.looks_random(
        [r.prompt for r in recorded], vocabulary
    ):
        flags.append("the prompts look like random token ids: exit depths on them mean nothing")
    own = {r.id: results[r.id] for r in work.requests} if results is not None else {}
    # Forced outputs end at their length too.
    free = {r.id for r in work.requests if r.force is None and not r.ignore_eos}
    capped = {n for n, r in own.items() if n in free and r.finish_reason is FinishReason.LENGTH}
    flags += health.warnings(
        [health.Continuation(r.prompt, r.tokens, r.id in capped) for r in recorded]
    )
    refused = sum(r.error is not None for r in own.values())
    empty = len(work.requests) - len(recorded) - refused
    if empty > 0:
        flags.append(f"{empty} of {len(work.requests)} outputs are empty and are not timed")
    if "requests" in plan.config.workload.model_fields_set:  # else nobody counts on a number
        flags += shortfall(plan, len(work.requests))
    return Findings(tuple(invalid), tuple(flags))
