"""Parts that hold tokens and depths against known ones, or against one request at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

from cdbench.models.base import StagedModel
from cdbench.models.loading import load_model
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from scripts.gpu_parts.check import Check
from scripts.gpu_parts.command import ROOT
from scripts.gpu_parts.demos import LOOPED_DEMOS, by_id, parted, questions

FIXTURES = ROOT / "tests" / "fixtures"
EVERY_FEW = 16
"""Of the fixtures' cases, under ``--tiny``."""


def fixtures(check: Check, found: dict[str, Any]) -> None:
    """Wrong cases per checkpoint, mode and layout; all must be 0. TF32 is off."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    layouts = ("per-loop",) if check.tiny else ("per-loop", "first-shared", "shared")
    found["faults"] = 0
    for name in ("ouro-nano", "huginn-nano"):
        expected = json.loads((FIXTURES / name / "expected.json").read_text())
        network = load_model(str(FIXTURES / name), dtype="float32", device=check.device).network
        for layout in layouts:
            cases = {str(i): c for i, c in enumerate(expected["cases"]) if c["kv"] == layout}
            if check.tiny:
                cases = dict(list(cases.items())[::EVERY_FEW])
            for mode in ("cdb", "lockstep"):
                config = EngineConfig(mode=mode, max_residents=128, kv_layout=layout)
                told = _wrong_cases(Engine(network, config), cases, expected)
                _keep(found, f"{name} {mode} {layout} at ease", told, told["wrong"])
            # Few at a time, so many launches: a quarter of the cases will do.
            few = cases if check.tiny else dict(list(cases.items())[::4])
            longest = max(_case("", c, expected).positions for c in few.values())
            config = pressed(replace(config, mode="cdb"), network, longest)
            told = _wrong_cases(Engine(network, config), few, expected)
            _keep(found, f"{name} {layout} pressed", told, told["wrong"])


def exact(check: Check, found: dict[str, Any]) -> None:
    """Requests of the looped demos that pressure changes in float64; all must be 0."""
    found["faults"] = 0
    for name in LOOPED_DEMOS[:1] if check.tiny else LOOPED_DEMOS:
        plan, requests = questions(check, name, "float64")
        network = plan.model.network
        config = EngineConfig(max_residents=32, width=16)
        engine = Engine(network, pressed(config, network, max(r.positions for r in requests)))
        together = by_id(engine.run(requests))
        alone = by_id(Engine(network, EngineConfig(max_residents=1)).run(requests))
        told = {**parted(alone, together).as_found(), **_pressure(engine)}
        _keep(found, name, told, told["changed"])


def changed(check: Check, found: dict[str, Any]) -> None:
    """Share of demo requests whose tokens depend on the batch, by dtype: no fault.

    Matrix kernels round by batch shape, so this is a property of the machine.
    """
    for name in LOOPED_DEMOS[:1] if check.tiny else LOOPED_DEMOS:
        for dtype in ("bfloat16", "float32"):
            plan, requests = questions(check, name, dtype)
            network = plan.model.network
            together = by_id(Engine(network, EngineConfig(max_residents=128)).run(requests))
            alone = by_id(Engine(network, EngineConfig(max_residents=1)).run(requests))
            found[f"{name} {dtype}"] = parted(alone, together).as_found()


def pressed(config: EngineConfig, network: StagedModel, positions: int) -> EngineConfig:
    """The same engine with barely room for its longest request, small chunks and cached prefixes.

    Read back from memory and from other requests' rows, every key must still be the right one.
    """
    shape = Engine(network, config).cache.shape
    return replace(
        config,
        kv_budget_bytes=shape.budget_for(positions + positions // 2),
        prefill_tokens=3,
        prefix_cache=True,
    )


def _case(name: str, case: Any, expected: Any) -> Request:
    threshold = None if case["rule"] == "none" else case["threshold"]
    return Request(
        id=name,
        prompt=expected["prompts"][case["prompt"]],
        max_new_tokens=len(case["tokens"]),
        exit=ExitPolicy(case["rule"], threshold, case["min_loops"], case["exit_lag"]),
        force=case["tokens"] if case["forced"] else None,
    )


def _wrong_cases(engine: Engine, cases: Any, expected: Any) -> dict[str, int]:
    requests = [_case(name, case, expected) for name, case in cases.items()]
    wrong = sum(
        r.tokens != cases[r.id]["tokens"] or r.executed_depths != cases[r.id]["depths"]
        for r in engine.run(requests)
    )
    return {"cases": len(cases), "wrong": wrong, **_pressure(engine)}


def _pressure(engine: Engine) -> dict[str, int]:
    """What the engine had to do for want of KV rows, and how many prompt tokens it found cached."""
    counted = engine.memory.counters
    return {
        "preemptions": counted.preemptions,
        "mid_token": counted.mid_token,
        "prefix_tokens": engine.cache.prefix_tokens,
    }


def _keep(found: dict[str, Any], name: str, told: dict[str, Any], faults: int) -> None:
    found[name] = told
    found["faults"] += faults
