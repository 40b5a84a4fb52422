"""The part that runs the real command on a checkpoint of its own, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from cdbench import resources
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.loading import build_network, randomise
from scripts.gpu_parts.check import Check
from scripts.gpu_parts.command import ROOT
from scripts.gpu_parts.shapes import timed_dtype

CHECKPOINT = "checkpoint"
OUT = "run"
ENDED_WELL = (0, 3)
"""Valid, or measured and INVALID: on a machine that others use that is the machine's doing."""
START = "import sys; from cdbench.cli.main import main; sys.exit(main())"
"""What the installed command runs; in a bare checkout it is not installed."""
LAST_LINES = 12
SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 16}


def run(check: Check, found: dict[str, Any]) -> None:
    """``cdbench run --model DIR``; any end but a result is a fault."""
    write_checkpoint(check, check.folder / CHECKPOINT)
    words = _words(check)
    found["command"] = ["cdbench", *words]
    done = subprocess.run(
        [sys.executable, "-c", START, *words],
        capture_output=True,
        text=True,
        cwd=check.folder,
        env=_environment(),
    )
    found["exit_code"] = done.returncode
    found["stderr"] = done.stderr.splitlines()[-LAST_LINES:]
    found["faults"] = int(done.returncode not in ENDED_WELL)
    if not found["faults"]:
        found["result"] = json.loads(done.stdout)
    shutil.rmtree(check.folder / OUT, ignore_errors=True)


def write_checkpoint(check: Check, directory: Path) -> None:
    """A looped model with random weights in its official format, with the demo's tokenizer."""
    demo = resources.demo_path(resources.DEFAULT_MODEL)
    config = json.loads((demo / "config.json").read_text())
    if not check.tiny:
        config |= {**SIZES, **HEADS}
    network = build_network(config, torch.bfloat16, torch.device(check.device))
    randomise(network, 0)
    save_checkpoint(network, config, directory, torch.bfloat16)
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copyfile(demo / name, directory / name)


def _words(check: Check) -> list[str]:
    requests, output, blocks = (4, 4, 1) if check.tiny else (128, 32, 6)
    keys = {"workload.prompt_tokens": 16, "workload.output": output, "engine.max_residents": 64}
    return [
        *("run", "--model", CHECKPOINT, "--device", check.device, "--dtype", timed_dtype(check)),
        *("--exit", "cdf@0.5", "--modes", "static,lockstep,cdb", "--work", "equal"),
        *("--source", "random", "--depths", "shallow-heavy", "--requests", str(requests)),
        *("--blocks", str(blocks), "--stages", "none", "--out", OUT, "--json"),
        *(word for key, value in keys.items() for word in ("--set", f"{key}={value}")),
    ]


def _environment() -> dict[str, str]:
    others = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([others] if others else [])])
    return {**os.environ, "PYTHONPATH": path}
