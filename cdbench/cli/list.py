"""``cdbench list models|tasks|rules|metrics``: what there is, by name."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from cdbench import resources
from cdbench.cli import output

verb = typer.Typer(rich_markup_mode=None)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Item = dict[str, Any]


@verb.command()
def models(as_json: JsonOption = False) -> None:
    """Demo models that ship with cdbench, and the model types it can build from a checkpoint."""
    from cdbench.models.registry import FAMILIES

    demos = [_demo(name) for name in resources.demo_names()]
    if as_json:
        output.print_json({"models": demos, "model_types": sorted(FAMILIES)})
        return
    keys = ("name", "model_type", "layers", "loops", "hidden_size", "weight_bytes")
    _print_items(keys, demos)
    print(f"\nAny checkpoint of type {', '.join(sorted(FAMILIES))}: a directory or a hub id.")


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
    _show("rules", ("name", "needs", "default_threshold", "range", "summary"), items, as_json)


@verb.command()
def metrics(as_json: JsonOption = False) -> None:
    """Metrics: unit, which direction is better, and the formula."""
    from cdbench.metrics.registry import METRICS

    items: list[Item] = [
        {
            "name": name,
            "unit": metric.unit,
            "direction": str(metric.direction),
            "formula": metric.formula,
        }
        for name, metric in METRICS.items()
    ]
    _show("metrics", ("name", "unit", "direction", "formula"), items, as_json)


def _demo(name: str) -> Item:
    directory = resources.demo_path(name)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return {
        "name": name,
        "model_type": config.get("model_type"),
        "layers": config.get("num_hidden_layers"),
        "loops": config.get("total_ut_steps", 1),
        "hidden_size": config.get("hidden_size"),
        "weight_bytes": sum(file.stat().st_size for file in directory.glob("*.safetensors")),
    }


def _task(name: str) -> Item:
    with resources.task_path(name).open(encoding="utf-8") as lines:
        return {"name": name, "documents": sum(1 for line in lines if line.strip())}


def _rule(name: str, rule: Any) -> Item:
    allowed = rule.threshold_range
    return {
        "name": name,
        "needs": str(rule.needs),
        "default_threshold": rule.default_threshold,
        "range": None if allowed is None else [allowed.low, allowed.high],
        "summary": rule.summary,
    }


def _show(kind: str, keys: tuple[str, ...], items: list[Item], as_json: bool) -> None:
    if as_json:
        output.print_json({kind: items})
    else:
        _print_items(keys, items)


def _print_items(keys: tuple[str, ...], items: list[Item]) -> None:
    headers = [key.replace("_", " ").upper() for key in keys]
    output.print_rows(headers, [[_cell(item[key]) for key in keys] for item in items])


def _cell(value: Any) -> str:
    """A value for a person: a range as ``0 … 1``, nothing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " … ".join(f"{end:g}" for end in value)
    return str(value)
