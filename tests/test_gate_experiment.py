"""The experiment on how often a paired gate errs: its arithmetic is the gate's, its claims tell."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cdbench.compare.gate_file import parse_gate
from cdbench.compare.pair.seen import Seen, log_gains
from scripts.gate_experiment import checkout
from scripts.gate_simulation import (
    NOISES,
    PAIRS,
    PLACES,
    Cell,
    claims,
    gains_of,
    simulate,
    with_change,
)
from tests.pairing import runs_of


def test_simulated_walls_come_to_the_gates_own_log_ratios() -> None:
    log_walls = np.random.default_rng(0).normal(0, 0.1, (PAIRS, PLACES))
    timed = parse_gate(
        {"name": "g", "timed": {"metrics": ["output_throughput"], "modes": ["cdb"]}}, "gate"
    ).timed
    runs = runs_of(np.exp(log_walls).ravel().tolist(), ("cdb",))
    wanted = log_gains(Seen(runs), ("cdb", "output_throughput"), timed)
    assert gains_of(log_walls).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(("change", "gain"), [(-0.08, -math.log(1.08)), (0.08, math.log(1.08))])
def test_a_change_turns_new_alone(change: float, gain: float) -> None:
    found = gains_of(with_change(np.zeros((2, 3, PAIRS, PLACES)), change))
    assert np.allclose(found, gain)


@pytest.mark.parametrize("noise", list(NOISES))
def test_pairs_scatter_as_the_cell_says(noise: str) -> None:
    draw = np.random.default_rng(1)
    quiet = simulate(Cell(noise, 0.01, 0.0), 40, draw)
    assert quiet["PASS"] >= 0.9
    assert quiet["FAIL"] == 0
    slowed = simulate(Cell(noise, 0.01, -0.3), 40, draw)
    assert slowed["FAIL"] >= 0.9
    assert sum(slowed["failed_after_pairs"].values()) == pytest.approx(slowed["FAIL"])


def test_of_several_metrics_one_that_is_slower_fails_the_gate() -> None:
    cell = Cell("normal", 0.01, -0.3, metrics=3, shared=0.8)
    assert simulate(cell, 40, np.random.default_rng(1))["FAIL"] >= 0.9


def test_claims_name_what_breaks_them() -> None:
    draw = np.random.default_rng(1)
    loud = simulate(Cell("normal", 0.3, -0.08), 40, draw)
    calm = simulate(Cell("normal", 0.01, -0.08), 40, draw)
    same = simulate(Cell("normal", 0.01, 0.0), 40, draw)
    found = claims([loud, calm, same])
    assert [each["scatter"] for each in found["detected_broken_by"]] == [0.3]
    assert found["most_false_alarms"] == 0
    assert found["false_alarms_broken_by"] == []


def test_a_slowed_checkout_is_a_copy_whose_engine_takes_longer(tmp_path: Path) -> None:
    program = checkout(tmp_path, "slowed", 0.5)
    asked = (
        "import cdbench, inspect; from cdbench.runtime.engine import Engine;"
        "print(cdbench.__file__, Engine.tick.__wrapped__.__name__)"
    )
    done = subprocess.run([program, "-P", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "slowed" / "cdbench" / "__init__.py"), "tick"]
