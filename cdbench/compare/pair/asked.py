"""What is asked of a paired gate: its checks, the modes they need, the workers' configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cdbench.compare.gate_file import ANSWERS, RATIOS, GateFile, WithinCheck, parse_gate
from cdbench.compare.gate_times import Key, timed_keys
from cdbench.config import RunConfig, load_config, parse_config
from cdbench.errors import UsageError
from cdbench.workloads.arrivals import parse_arrivals

DEFAULT_NAME = "paired-default"
DEFAULT_METRIC = "output_throughput"
OF_WALLS = ("speedup", "output_throughput", "decode_throughput", "request_throughput")
"""Ratios of walls: the engine's only where it sets the pace."""
NOT_FOR_WORKERS = ("out", "repeats", "stages", "work", "modes")
"""Keys of a run that the gate decides itself."""


@dataclass(frozen=True)
class Asked:
    """Everything known before a worker starts.

    ``tree`` is the configuration that both workers get: the keys that were set, so that a key that
    one side does not know is refused only where somebody set it. ``notes`` say what is left out.
    """

    gate: GateFile
    gate_sha256: str
    tree: dict[str, Any]
    config: RunConfig
    modes: tuple[str, ...]
    within: tuple[WithinCheck, ...]
    notes: tuple[str, ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """Every mode and metric that is compared."""
        return tuple(timed_keys(self.gate))


def ask(
    config: str | None, gate: GateFile | None, gate_sha256: str, overrides: Sequence[str] = ()
) -> Asked:
    """What a gate needs to be judged on a configuration; no gate: throughput of every mode.

    Raises:
        UsageError: the configuration is wrong, or the gate asks for what cannot be measured on it.
    """
    loaded = load_config(config, overrides)
    ran = [str(mode) for mode in loaded.resolved_modes if mode.depth != "auto"]
    left_out = [str(mode) for mode in loaded.resolved_modes if mode.depth == "auto"]
    notes = [f"mode {mode} is not timed: its depth is chosen by accuracy" for mode in left_out]
    if gate is None:
        gate = parse_gate(
            {"name": DEFAULT_NAME, "modes": ran, "timed": {"metrics": [DEFAULT_METRIC]}}, "default"
        )
        gate_sha256 = hashlib.sha256(gate.model_dump_json().encode()).hexdigest()
    within = tuple(asked for asked in gate.within if asked.metric not in (*RATIOS[1:], *ANSWERS))
    notes += [
        f"{asked.name} is not checked: a paired gate measures no bounds and asks no questions; "
        "judge a run by it"
        for asked in gate.within
        if asked not in within
    ]
    modes = _modes(gate, within, ran)
    _check(gate, loaded, modes)
    given = loaded.model_dump(mode="json", exclude_unset=True)
    tree = {key: value for key, value in given.items() if key not in NOT_FOR_WORKERS}
    tree |= {"work": ["equal"], "modes": list(modes), "stages": "none"}
    return Asked(gate, gate_sha256, tree, parse_config(tree), modes, within, tuple(notes))


def _modes(gate: GateFile, within: Sequence[WithinCheck], ran: Sequence[str]) -> tuple[str, ...]:
    """The modes that the checks need, in the configuration's order."""
    needed = {mode for mode, _ in timed_keys(gate)} | set(gate.modes)
    if "speedup" in gate.timed.metrics:
        needed.add(gate.timed.over)
    for asked in within:
        needed |= {asked.mode, *([asked.over] if asked.metric == "speedup" else [])}
    missing = sorted(needed - set(ran))
    if missing:
        raise UsageError(
            f"--gate {gate.name}: needs mode {missing[0]}, which the configuration does not time "
            f"({', '.join(ran)}); add it there, or take it out of the gate"
        )
    return tuple(mode for mode in ran if mode in needed)


def _check(gate: GateFile, config: RunConfig, modes: Sequence[str]) -> None:
    if not modes:
        raise UsageError(f"--gate {gate.name}: checks nothing that a paired gate can measure")
    if config.kv.budget_fraction is not None:
        raise UsageError(
            "kv.budget_fraction: is of the memory that is free, which two processes would share "
            "unequally; give kv.budget_bytes"
        )
    paced = parse_arrivals(config.workload.arrivals).wall_ratios_allowed
    for metric in gate.timed.metrics:
        if metric in OF_WALLS and not paced:
            raise UsageError(
                f"--gate {gate.name}: {metric} says nothing where requests arrive at times of "
                "their own; compare a latency, or let them arrive all at once"
            )
    for why in _inexact(config) if gate.exact else ():
        raise UsageError(f"--gate {gate.name}: exact: {why}")


def _inexact(config: RunConfig) -> list[str]:
    """Why counts may vary from one timed region to the next; tokens and depths are replayed."""
    return [
        *(["engine.max_itl_s is set"] if config.engine.max_itl_s is not None else []),
        *(["engine.coda_min_rows is auto"] if config.engine.coda_min_rows == "auto" else []),
        *(
            [f"arrivals are {config.workload.arrivals}; use all-at-once"]
            if config.workload.arrivals != "all-at-once"
            else []
        ),
    ]
