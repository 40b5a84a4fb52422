"""``cdbench list models|tasks|rules|metrics``: what there is, by name."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdbench import resources
from cdbench.cli import output
from cdbench.errors import UsageError

if TYPE_CHECKING:
    from cdbench.models.registry import Family

verb = typer.Typer(rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Item = dict[str, Any]

DEMO_KEYS = (
    "name",
    "model_type",
    "layers",
    "loops",
    "hidden_size",
    "weight_bytes",
    "kv_bytes_per_token",
    "cost_ratio",
)
"""Layers as PRELUDE-CORE-CODA; KV bytes at full depth in layout ``per-loop``, by dtype."""


@verb.command()
def models(as_json: JsonOption = False) -> None:
    """Demo models that ship with cdbench, and the families it can serve a checkpoint of.

    Layers read PRELUDE-CORE-CODA; KV bytes are those of a token at full depth, with a slot per
    loop; cost ratio is what prelude and coda weigh against one loop.
    """
    from cdbench.models.registry import families

    demos = [_demo(name) for name in resources.demo_names()]
    known = [_family(family) for family in families().values()]
    if as_json:
        types = sorted(item["model_type"] for item in known)
        output.print_json({"models": demos, "model_types": types, "families": known})
        return
    _print_items(DEMO_KEYS, demos)
    print()
    _print_items(("model_type", "stages", "needs", "package", "summary"), known)
    print("\nAny checkpoint of these types is served: give its directory or a hub id.")


@verb.command()
def tasks(as_json: JsonOption = False) -> None:
    """Evaluation tasks that ship with cdbench."""
    items = [_task(name) for name in resources.task_names()]
    _show("tasks", ("name", "documents"), items, as_json)


@verb.command()
def rules(as_json: JsonOption = False) -> None:
    """Exit rules for --exit: what each computes, and its thresholds."""
    from cdbench.runtime.exits import RULES

    items = [_rule(name, rule) for name, rule in RULES.items()]
    keys = ("name", "needs", "default_threshold", "range", "summary", "cost")
    _show("rules", keys, items, as_json)


@verb.command()
def metrics(as_json: JsonOption = False) -> None:
    """Metrics: unit, which direction is better, and the formula.

    First those of one run, then the figures of two modes or of the model alone.
    """
    from cdbench.metrics.registry import COMPARED, METRICS

    items: list[Item] = [
        {
            "name": name,
            "unit": metric.unit,
            "direction": str(metric.direction),
            "formula": metric.formula,
        }
        for name, metric in {**METRICS, **COMPARED}.items()
    ]
    _show("metrics", ("name", "unit", "direction", "formula"), items, as_json)


def _demo(name: str) -> Item:
    """A demo model's sizes; those that need a built model are None where it cannot be."""
    directory = resources.demo_path(name)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return {
        **dict.fromkeys(DEMO_KEYS),
        "name": name,
        "model_type": config.get("model_type"),
        "weight_bytes": sum(file.stat().st_size for file in directory.glob("model*.safetensors")),
        **_sizes(config),
    }


def _sizes(config: Item) -> Item:
    """What a configuration amounts to, from a model without memory for its weights."""
    import torch

    from cdbench.models.base import dtype_name
    from cdbench.models.registry import build_model
    from cdbench.runtime.cache_shape import cache_shape

    try:
        with torch.device("meta"):
            network = build_model(config)
    except UsageError:
        return {}
    dims = network.dims
    return {
        "layers": dims.layers_by_stage,
        "loops": dims.max_loops,
        "hidden_size": dims.hidden_size,
        "kv_bytes_per_token": {
            dtype_name(dtype): cache_shape(dims, "per-loop", dims.max_loops, dtype).position_bytes
            for dtype in (torch.float32, torch.bfloat16)
        },
        "cost_ratio": round(network.flops_per_token().ratio, 4),
    }


def _family(family: Family) -> Item:
    """A family's line; of a package's nothing is known but its name and what it says of itself."""
    traits = {"gate": family.gate, "injection": family.injection, "halting": family.halting}
    needs = [
        name if value else f"{name} (optional)"
        for name, value in traits.items()
        if value is not False
    ]
    return {
        "model_type": family.model_type,
        "stages": None if family.stages is None else list(family.stages),
        "needs": None if family.stages is None else needs,
        "package": family.package,
        "summary": family.summary,
    }


def _task(name: str) -> Item:
    with resources.task_path(name).open(encoding="utf-8") as lines:
        return {"name": name, "documents": sum(1 for line in lines if line.strip())}


def _rule(name: str, rule: Any) -> Item:
    from cdbench.runtime.exit_rule import NEEDS_COST

    allowed = rule.threshold_range
    return {
        "name": name,
        "needs": str(rule.needs),
        "default_threshold": rule.default_threshold,
        "range": None if allowed is None else [allowed.low, _finite(allowed.high)],
        "summary": rule.summary,
        "cost": NEEDS_COST[rule.needs],
    }


def _finite(value: float) -> float | None:
    """A bound for JSON, which has no infinity."""
    return None if math.isinf(value) else value


def _show(kind: str, keys: tuple[str, ...], items: list[Item], as_json: bool) -> None:
    if as_json:
        output.print_json({kind: items})
    else:
        _print_items(keys, items)


def _print_items(keys: tuple[str, ...], items: list[Item]) -> None:
    headers = [key.replace("_", " ").upper() for key in keys]
    output.print_rows(headers, [[_cell(item[key]) for key in keys] for item in items])


def _cell(value: Any) -> str:
    """A value for a person: a range as ``0 … 1``, names with commas, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{number:,} {name}" for name, number in value.items())
    if isinstance(value, list):
        if all(isinstance(part, str) for part in value):
            return ", ".join(value) or "-"
        return " … ".join("" if end is None else f"{end:g}" for end in value).rstrip()
    return f"{value:,}" if isinstance(value, int) else str(value)
