"""What latency targets and a price make of a run: shown whenever they were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdbench.render.formats import Kind
from cdbench.render.intervals import interval_cell
from cdbench.render.memory import memory_table
from cdbench.render.metric_table import metric_table
from cdbench.render.table import Column, Row, Table, text
from cdbench.schema import Result


def asked_tables(result: Result) -> list[Table]:
    """Residents of equal memory, goodput under the targets, cost at the price, break-even prices.

    None of them where it was not asked for.
    """
    tables = [memory_table(result), _goodput_and_cost(result), _break_even(result)]
    return [table for table in tables if table.rows]


def _goodput_and_cost(result: Result) -> Table:
    limits, price = targets(result.config), result.config.get("price_per_hour")
    metrics = []
    notes = []
    if limits:
        metrics.append(("goodput", Kind.NUMBER))
        notes.append(f"Goodput: finished requests per second of wall with {' and '.join(limits)}.")
    if price is not None:
        metrics.append(("cost_per_million_tokens", Kind.NUMBER))
        notes.append(f"Cost: per million output tokens, in the currency of {price:g} per hour.")
    if not metrics:
        return Table((), ())
    title = f"{' and '.join(_TITLES[name] for name, _ in metrics)}, mean over the timed runs"
    return metric_table(result, tuple(metrics), title, tuple(notes), all_stay=True)


_TITLES = {"goodput": "goodput", "cost_per_million_tokens": "cost"}


def targets(config: Mapping[str, Any]) -> list[str]:
    """The latency targets given, as conditions on a request."""
    given = config.get("slo") or {}
    limits = ((name, given.get(f"{name}_s")) for name in ("ttft", "tpot", "e2e"))
    return [f"{name} ≤ {limit:g} s" for name, limit in limits if limit is not None]


def _break_even(result: Result) -> Table:
    columns = (
        Column("on equal work", align="left"),
        Column("an hour may cost, of the other's"),
        Column("price at which the other costs the same", unit="per hour"),
    )
    rows = tuple(
        Row(
            (
                text(f"{found.mode} against {found.over}"),
                interval_cell(found.price_ratio, Kind.RATIO),
                interval_cell(found.baseline_price_per_hour),
            )
        )
        for found in result.break_even
    )
    return Table(columns, rows, "break-even prices per hour, end to end")
