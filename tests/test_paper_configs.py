"""The shipped sweeps and configurations: they expand, and each pair differs in sizes only."""

from __future__ import annotations

from typing import Any

import pytest

from cdbench import resources
from cdbench.config import load_config
from cdbench.sweep import runners
from cdbench.sweep.cells import expand
from cdbench.sweep.figures import columns
from cdbench.sweep.file import (
    SweepFile,
    read_sweep,
    sweep_names,
)
from cdbench.sweep.stage_figures import stage_columns

PAIRS = sorted({name.rpartition(".")[0] for name in sweep_names()})
MAY_DIFFER = (
    "name",
    "base.model",
    "base.dense",
    "base.device",
    "base.dtype",
    "base.exit.max_loops",
    "base.engine.",
    "base.kv.budget_fraction",
    "base.tasks",
    "base.limit",
    "base.workload.source",
    "base.workload.requests",
    "base.workload.output",
    "base.workload.max_new_tokens",
    "base.workload.prompt_tokens",
)
"""Model, sizes and the memory they may take, workload and its lengths."""


def test_the_papers_experiments_are_there() -> None:
    assert [
        f"paper/{name}"
        for name in (
            "accuracy",
            "coda-minimum",
            "exit-sweep",
            "exit-sweep-huginn",
            "scheduling-overhead",
            "serving-rate",
            "step-latency",
            "width-sweep",
        )
    ] == PAIRS


@pytest.mark.parametrize("name", sweep_names())
def test_every_shipped_sweep_expands(name: str) -> None:
    read = read_sweep(name)
    sweep = expand(read, name, check=runners.checker())
    assert sweep.notes == ()  # no cell is another one's twin
    assert len(sweep.cells) > 1
    if sweep.verb == "run":
        assert columns(sweep.show, [cell.config for cell in sweep.cells])
        # Every cell at several random times, and enough blocks over all of them; answers are the
        # same at any time.
        timed = [cell.config for cell in sweep.cells if "equal" in cell.config.work]
        assert (sweep.rounds > 1) == bool(timed)
        assert all(config.repeats.blocks * sweep.rounds == 6 for config in timed)
        shared = name.endswith(".gpu")
        assert all((c.config.kv.budget_fraction is not None) == shared for c in sweep.cells)
    else:
        assert stage_columns(sweep.show)
    for cell in sweep.cells:
        assert cell.config.device == ("cpu" if name.endswith(".cpu") else "cuda")
        if cell.config.layers is not None:
            assert cell.config.weight_seed is not None


@pytest.mark.parametrize("pair", PAIRS)
def test_the_checkpoint_variant_differs_in_model_and_sizes_only(pair: str) -> None:
    cpu, gpu = (flat(read_sweep(f"{pair}.{device}")) for device in ("cpu", "gpu"))
    unlike = {key for key in {*cpu, *gpu} if cpu.get(key) != gpu.get(key)}
    assert "base.model" in unlike
    # A grid's keys are the same; its values are sizes, rates or thresholds.
    assert {k for k in cpu if k.startswith(("grid.", "link"))} == {
        k for k in gpu if k.startswith(("grid.", "link"))
    }
    left = {
        key
        for key in unlike
        if not key.startswith(MAY_DIFFER) and not key.startswith(("grid.", "link"))
    }
    # One threshold may suit the demo and another the checkpoint.
    assert left <= {"base.exit"}
    for key in ("base.exit",):
        if key in left:
            assert str(cpu[key]).partition("@")[0] == str(gpu[key]).partition("@")[0]


def flat(sweep: SweepFile) -> dict[str, Any]:
    """Dotted key → value; of ``link``, the set of its keys."""
    tree = sweep.model_dump(mode="json")
    tree["link"] = sorted({key for group in sweep.link for item in group for key in item})
    found: dict[str, Any] = {}

    def walk(prefix: str, node: Any) -> None:
        if isinstance(node, dict) and prefix != "grid":
            for key, inner in node.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        elif isinstance(node, dict):
            found.update({f"grid.{key}": values for key, values in node.items()})
        else:
            found[prefix] = node

    walk("", tree)
    return found


@pytest.mark.parametrize("name", resources.config_names())
def test_every_shipped_configuration_loads(name: str) -> None:
    assert load_config(name).model
