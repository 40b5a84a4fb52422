"""What a launch's time depends on: curves may stand for others only where all of it is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch

from cdbench import manifest
from cdbench.bench.plan import Plan
from cdbench.machine.unchanged import sha256_file, source_sha256
from cdbench.models.base import dtype_name
from cdbench.runtime.attention.backends import choose_backend
from cdbench.runtime.core import ExitPolicy
from cdbench.schema.stages import StageKey

TIMED_PACKAGES = ("models", "runtime", "stages")
"""The code that a launch runs, and that which makes cells of launches."""


def stage_key(plan: Plan) -> StageKey:
    """The key of curves measured now."""
    model, network = plan.model, plan.model.network
    return StageKey(
        code_version=source_sha256(parts=TIMED_PACKAGES),
        torch_version=torch.__version__,
        threads=torch.get_num_threads(),
        attention=choose_backend(plan.config.engine.attention, network.device),
        compiled=plan.config.engine.compile,
        graphs=plan.config.engine.graphs,
        dtype=dtype_name(network.dtype),
        kv_layout=plan.kv_layout,
        device=_device_name(network.device),
        model=_files_hash(model.files),
        weights=model.weights,
        max_loops=plan.max_loops,
        layers=network.dims.layers_by_stage,
        exit_rule=_rule(plan.policy),
        state_init=plan.config.state_init,
    )


def _rule(policy: ExitPolicy) -> str:
    """What runs after a loop: a gate's cost is its kind's and size's, so its weights name it."""
    if policy.lookahead is None:
        return policy.rule
    return f"lookahead {policy.lookahead.sha256} for {policy.rule}"


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
