"""Whether a recorded run can be replayed on a model, and what must be said where it is another's.

A replay executes what was recorded: tokens, depths, first tokens. A setting that says otherwise
would be shown and not done, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdbench import manifest
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.models.loading import LoadedModel
from cdbench.runtime.exits import LACKS, RULES, suits
from cdbench.workloads.traced import ExitTrace, which_weights


def check_trace(
    trace: ExitTrace, config: RunConfig, model: LoadedModel, max_loops: int, adaptive: bool = True
) -> None:
    """Raise UsageError where this model cannot do what was recorded, at so many loops.

    Where no mode is ``adaptive`` the recorded tokens alone are replayed.
    """
    _check_vocabulary(trace, model)
    if adaptive:
        _check_rule(trace, model)
        _check_loops(trace, model, max_loops)
        _check_first_token(trace, config)


def check_kept(trace: ExitTrace, given: dict[str, int]) -> None:
    """Raise UsageError where a floor or lag is given that the recorded depths do not have."""
    for key, recorded in (("min_loops", trace.min_loops), ("lag", trace.lag)):
        if given.get(key, recorded) != recorded:
            raise UsageError(
                f"exit.{key}: {given[key]} is given, but {trace.file} was recorded at {recorded} "
                f"and its depths are executed as they are; drop it, or record at {given[key]}"
            )


def trace_notes(trace: ExitTrace, model: LoadedModel) -> Iterator[str]:
    """What a person must be told of replaying this trace on this model."""
    other = _other_model(trace, model)
    if other is not None:
        yield f"{other}: its depths are not this model's own; record it again to have those"
    for mark in trace.marks:
        yield f"{trace.file}: {mark}"


def _other_model(trace: ExitTrace, model: LoadedModel) -> str | None:
    """How the model differs from the one that the trace was recorded on; None where it is it."""
    weights = which_weights(model.weights, model.layers)
    names = model.name, Path(model.name).resolve().name
    if trace.weights != weights:
        return (
            f"{trace.file} was recorded on {trace.model} with weights {trace.weights}, this is "
            f"{model.name} with {weights}"
        )
    if trace.hashes:
        own = manifest.identify(model.name, model.files).files
        changed = sorted(name for name in trace.hashes if own.get(name) != trace.hashes[name])
        if not changed:
            return None  # under whatever name
        if trace.model in names:
            return (
                f"{trace.file} was recorded on other files of {model.name} ({', '.join(changed)})"
            )
    if trace.model not in names:
        return f"{trace.file} was recorded on {trace.model}, this is {model.name}"
    return None


def _check_vocabulary(trace: ExitTrace, model: LoadedModel) -> None:
    size = model.network.dims.vocab_size
    for request in trace.requests:
        highest = max((*(request.prompt or ()), *request.tokens), default=0)
        if highest >= size:
            raise UsageError(
                f"trace {trace.file}: request {request.id!r} has token id {highest}, as recorded "
                f"on {trace.model}, but {model.name} knows ids 0 to {size - 1}; "
                f"{_elsewhere(trace, model)}"
            )


def _check_loops(trace: ExitTrace, model: LoadedModel, max_loops: int) -> None:
    if trace.max_loops == max_loops:
        return
    enough = trace.max_loops <= model.network.dims.max_loops
    raise UsageError(
        f"trace {trace.file}: was recorded at {trace.max_loops} loops on {trace.model}, this run "
        f"of {model.name} has {max_loops}; "
        + (f"set --max-loops {trace.max_loops}" if enough else _elsewhere(trace, model))
    )


def _check_rule(trace: ExitTrace, model: LoadedModel) -> None:
    rule, dims = RULES.get(trace.spec.rule), model.network.dims
    if rule is not None and not suits(rule, dims):
        raise UsageError(
            f"trace {trace.file}: was recorded on {trace.model} with rule {rule.name}, which needs "
            f"{LACKS[rule.needs][1]}, and {model.name} lacks it; {_elsewhere(trace, model)}"
        )


def _check_first_token(trace: ExitTrace, config: RunConfig) -> None:
    if trace.first_token != config.first_token:
        raise UsageError(
            f"first_token: {config.first_token} is not what {trace.file} was recorded with; set "
            f"it to {trace.first_token}"
        )
    if trace.first_token == "select" and trace.derived_from is not None:
        raise UsageError(
            f"trace {trace.file}: was recorded with first_token select, whose loop at "
            f"{trace.spec} is not known; drop the threshold, or record at it"
        )


def _elsewhere(trace: ExitTrace, model: LoadedModel) -> str:
    return f"replay it on {trace.model}, or record it again on {model.name}"
