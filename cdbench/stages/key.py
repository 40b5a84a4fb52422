"""What a launch's time depends on, and when curves measured before may stand for new ones."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from cdbench import manifest
from cdbench.bench.plan import Plan
from cdbench.errors import UsageError
from cdbench.machine.unchanged import sha256_file, source_sha256
from cdbench.schema.files import read_document
from cdbench.schema.stages import STAGES_FILE, StageCurves, StageKey

TIMED_PACKAGES = ("models", "runtime", "stages")
"""The code that a launch runs, and that which makes cells of launches."""


BEYOND = 1.25
"""Contexts this far beyond those measured are still read off the last line of a curve."""


def stage_key(plan: Plan) -> StageKey:
    """The key of curves measured now."""
    model, network = plan.model, plan.model.network
    dims = network.dims
    own_layers = f"{dims.prelude_layers}-{dims.core_layers}-{dims.coda_layers}"
    return StageKey(
        code_version=source_sha256(parts=TIMED_PACKAGES),
        torch_version=torch.__version__,
        threads=torch.get_num_threads(),
        attention=plan.config.engine.attention.replace("auto", "sdpa"),
        dtype=str(network.dtype).removeprefix("torch."),
        kv_layout=plan.kv_layout,
        device=_device_name(network.device),
        model=_files_hash(model.files),
        weights="checkpoint" if model.weight_seed is None else f"random:{model.weight_seed}",
        max_loops=plan.max_loops,
        layers=own_layers,
        exit_rule=plan.policy.rule,
        state_init=plan.config.state_init,
    )


def read_curves(path: Path, plan: Plan, width: int | None = None) -> StageCurves:
    """Saved curves that may stand for this plan's.

    Raises:
        UsageError: the file cannot be read, was measured for something else (every field that
        differs is named), with rows of equal context, or does not reach the width.
    """
    file = path / STAGES_FILE if path.is_dir() else path
    saved = read_document(StageCurves, file)
    differs = differences(saved.key, stage_key(plan))
    if differs:
        raise UsageError(
            f"{file}: these stage curves were measured for something else ({'; '.join(differs)}); "
            "measure anew with `cdbench stages`"
        )
    if saved.rows != "ragged":
        raise UsageError(
            f"{file}: these stage curves have rows of equal context in a launch, a run's are "
            "ragged; measure anew with `cdbench stages` without --contexts"
        )
    wanted = width or plan.config.engine.width
    reached = max((p.rows for p in saved.points if p.stage == "core"), default=0)
    if reached < wanted:
        raise UsageError(
            f"{file}: these stage curves reach {reached} rows, the run has launches of {wanted}; "
            "measure anew with `cdbench stages`"
        )
    return saved


def uncovered(saved: StageCurves, contexts: Sequence[int]) -> str | None:
    """Why saved curves do not reach these contexts; None where they do, or nearly."""
    low, high = min(contexts), max(contexts)
    if low >= saved.contexts[0] / BEYOND and high <= saved.contexts[-1] * BEYOND:
        return None
    return (
        f"they were measured at contexts of {saved.contexts[0]} to {saved.contexts[-1]}, later "
        f"tokens here have {low} to {high}"
    )


def differences(saved: StageKey, wanted: StageKey) -> list[str]:
    """``field: saved, now wanted`` for each field that differs."""
    return [
        f"{name}: {_short(getattr(saved, name))}, now {_short(getattr(wanted, name))}"
        for name in StageKey.model_fields
        if getattr(saved, name) != getattr(wanted, name)
    ]


def _short(value: object) -> str:
    """Enough of a hash to tell two apart."""
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and text.isalnum() else text


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return manifest.cpu_model() or "unknown CPU"


def _files_hash(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda f: f.name):
        digest.update(f"{file.name}\0{sha256_file(file)}\0".encode())
    return digest.hexdigest()
