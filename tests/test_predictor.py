"""Recording, fitting, storing and judging a gate; hand-made tokens have known answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cdbench import manifest
from cdbench.bench.facts import earliest_call, stage_costs
from cdbench.cli.main import main
from cdbench.errors import UsageError
from cdbench.metrics.predictor import count_calls
from cdbench.metrics.registry import METRICS
from cdbench.metrics.trace import RunTrace
from cdbench.models.base import StageCost
from cdbench.predictor.calibration import calibration_error, reliability
from cdbench.predictor.decisions import Tokens, called_depths, figures, first_met, plain_late
from cdbench.predictor.fit import FitOptions, Fitted, Split, choose_threshold, fit
from cdbench.predictor.gate_files import read_gate, write_gate
from cdbench.predictor.recording import Recorded
from cdbench.predictor.recording_file import read_states, write_states
from cdbench.render.predictor_table import predictor_table
from cdbench.runtime.core import ExitPolicy, FinishReason, RequestResult
from cdbench.runtime.lookahead import Gate, Lookahead, PreLoopGate
from cdbench.schema import ExitSettings, ModelIdentity, RequestRecord, WorkloadRecord
from cdbench.schema.lookahead import (
    GATE_FILE,
    GATE_WEIGHTS_FILE,
    GateJudgement,
    GateSetting,
    StateRecording,
)
from tests.recorded import scripted_blocks
from tests.test_raw_records import scripted_result

Capture = pytest.CaptureFixture[str]
R = 5
SIZE = 6
THRESHOLD = 0.5


# Figures by hand.


def tokens(signals: list[list[float]], floor: int = 2) -> Tokens:
    """Tokens of one request with these signals, under a rule that asks at 0.5 and above."""
    values = np.array(signals)
    met = values >= THRESHOLD
    states = np.zeros((len(signals), R - 1, SIZE), np.float32)
    return Tokens(states, values, met, first_met(met, floor), 1, floor)


SIGNALS = [
    [0.1, 0.6, 0.7, 0.8, 0.9],  # due at 2
    [0.1, 0.2, 0.6, 0.7, 0.8],  # due at 3
    [0.1, 0.2, 0.3, 0.4, 0.5],  # due at R
    [0.9, 0.9, 0.9, 0.9, 0.9],  # asks at 1: due at 2, the earliest depth there is
    [0.1, 0.2, 0.3, 0.6, 0.7],  # due at 4
]
PROBABILITIES = np.array(
    [
        [0.9, 0.1, 0.1],  # called at 2: right
        [0.1, 0.1, 0.9],  # missed; the late call does not count
        [0.1, 0.9, 0.1],  # called at 3: wrong
        [0.2, 0.9, 0.9],  # missed at once: the rule itself ends it after loop 2
        [0.1, 0.9, 0.1],  # called at 3: wrong, one loop too early
    ]
)


def test_depths_called_and_executed_by_hand() -> None:
    given = tokens(SIGNALS)
    assert given.due.tolist() == [2, 3, 5, 2, 4]
    assert plain_late(given).tolist() == [3, 4, 5, 2, 5]
    assert called_depths(given, PROBABILITIES, 0.5).tolist() == [2, 5, 3, 5, 3]
    found = figures(given, PROBABILITIES, 0.5)
    assert (found.precision, found.recall) == (1 / 3, 1 / 3)
    assert (found.token_loops, found.token_loops_lag0, found.token_loops_lag1) == (
        2 + 4 + 3 + 2 + 3,
        2 + 3 + 5 + 2 + 4,
        3 + 4 + 5 + 2 + 5,
    )
    assert found.exact == 2 / 5
    assert found.depth_error == (0 + 1 + 2 + 0 + 1) / 5
    by_loop = [(f.loop, f.asked, f.called, f.right, f.missed) for f in found.by_loop]
    assert by_loop == [(1, 5, 1, 1, 1), (2, 3, 2, 0, 1), (3, 0, 0, 0, 0)]


def test_calls_before_loop_1_by_hand() -> None:
    """With them the floor is 1, and a token that asks at once is due there."""
    given = tokens(SIGNALS, floor=1)
    before = np.array([False, True, False, True, False])
    assert given.due.tolist() == [2, 3, 5, 1, 4]
    assert called_depths(given, PROBABILITIES, 0.5, before).tolist() == [2, 1, 3, 1, 3]
    found = figures(given, PROBABILITIES, 0.5, before)
    # Right: 2 and 1; wrong: 1 for 3, 3 for R, 3 for 4.
    assert (found.precision, found.recall) == (2 / 5, 1.0)
    assert found.token_loops == 2 + 1 + 3 + 1 + 3
    assert (found.token_loops_lag0, found.token_loops_lag1) == (15, 3 + 4 + 5 + 2 + 5)
    by_loop = [(f.loop, f.asked, f.called, f.right, f.missed) for f in found.by_loop]
    assert by_loop == [(0, 5, 2, 1, 0), (1, 3, 1, 1, 0), (2, 2, 2, 0, 0), (3, 0, 0, 0, 0)]
    # Without a call before loop 1 that token is missed, and leaves after loop 2 by the rule alone.
    missed = figures(given, PROBABILITIES, 0.5)
    assert missed.by_loop[0].missed == 1
    assert missed.token_loops == 2 + 4 + 3 + 2 + 3


def test_decisions_end_where_the_rule_has_asked() -> None:
    token, loop = tokens(SIGNALS).decisions()
    pairs = list(zip(token.tolist(), loop.tolist(), strict=True))
    assert pairs == [
        (0, 1),
        *((1, k) for k in (1, 2)),
        *((2, k) for k in (1, 2, 3)),
        (3, 1),
        *((4, k) for k in (1, 2, 3)),
    ]


def test_a_floor_of_3_leaves_loop_1_out() -> None:
    given = tokens(SIGNALS, floor=3)
    assert given.due.tolist() == [3, 3, 5, 3, 4]
    assert called_depths(given, PROBABILITIES, 0.5).tolist() == [5, 5, 3, 3, 3]


def test_a_late_call_is_a_miss() -> None:
    counts = count_calls(np.array([4]), np.array([3]), 5)
    assert (counts.right, counts.wrong, counts.missed) == (0, 0, 1)
    assert counts.precision is None
    assert counts.recall == 0


def result(called: list[int | None] | None) -> RequestResult:
    """A request of four later tokens."""
    return RequestResult(
        id="a",
        prompt_tokens=3,
        tokens=[1, 2, 3, 4, 5],
        executed_depths=[5, 2, 4, 2, 5],
        requested_depths=[5, 1, 3, 3, 5],
        logprobs=[0.0] * 5,
        text=None,
        stop_depth=None,
        finish_reason=FinishReason.LENGTH,
        error=None,
        arrival_s=0.0,
        admitted_s=0.0,
        token_s=[1.0, 2.0, 3.0, 4.0, 5.0],
        finish_s=5.0,
        predicted_depths=called,
    )


def metric(name: str, called: list[int | None] | None, earliest: int = 2) -> float | None:
    given = result(called)
    # Raw records are what a summary is made from.
    line = RequestRecord.of(given, doc_id=None, mode="cdb", work="equal")
    again = RequestRecord.model_validate_json(line.model_dump_json())
    values = [
        METRICS[name].compute(RunTrace("cdb", [one], [], 9.0, 1, 1, R, earliest_call=earliest))
        for one in (given, again)
    ]
    assert values[0] == values[1]
    return values[0]


def test_metrics_of_a_run_by_hand() -> None:
    # Due at 2 (asked at 1), 3, 3 or later, 5. Called: 2 right, none, 2 too early, not asked.
    called = [None, 2, 5, 2, None]
    assert metric("predictor_precision", called) == 1 / 2
    assert metric("predictor_recall", called) == 1 / 2
    assert metric("predictor_exact", called) == 2 / 4
    assert metric("predictor_depth_error", called) == (0 + 1 + 1 + 0) / 4


def test_with_a_pre_loop_gate_a_token_that_asked_at_once_was_due_there() -> None:
    # Due at 1, 3, 3 or later, 5; called: none in time, none, 2 too early, not asked.
    called = [None, 2, 5, 2, None]
    assert metric("predictor_precision", called, earliest=1) == 0
    assert metric("predictor_recall", called, earliest=1) == 0
    assert metric("predictor_exact", called, earliest=1) == 1 / 4
    assert metric("predictor_depth_error", called, earliest=1) == (1 + 1 + 1 + 0) / 4
    assert metric("predictor_recall", [None, 1, 5, 2, None], earliest=1) == 1 / 2


def test_metrics_are_undefined_without_a_gate_or_without_a_call() -> None:
    for name in ("precision", "recall", "exact", "depth_error"):
        assert metric(f"predictor_{name}", None) is None
    assert metric("predictor_precision", [None, 5, 5, 5, 5]) is None
    assert metric("predictor_recall", [None, None, None, None, None]) is None


def test_records_without_the_list_are_read() -> None:
    line = RequestRecord.of(result([None, 2, 5, 2, None]), doc_id=None, mode="cdb", work="equal")
    old = line.model_dump()
    del old["predicted_depths"]
    assert RequestRecord.model_validate(old).predicted_depths is None


def test_a_pre_loop_gate_costs_a_prelude_and_the_other_a_loop() -> None:
    weights = {"weight": torch.zeros(2, 7), "bias": torch.zeros(2)}
    before = {"weight": torch.zeros(1, 6), "bias": torch.zeros(1)}
    gate = Lookahead(Gate("linear", weights, falls=False), 0.5, "cdf", 0.5, R)
    both = replace(gate, pre_loop=PreLoopGate(Gate("linear", before, falls=False), 0.5))

    def costs(one: Lookahead | None, adaptive: bool = True) -> tuple[float, float, float]:
        network = SimpleNamespace(flops_per_token=lambda: StageCost(10.0, 100.0, 1000.0))
        subject: Any = SimpleNamespace(
            model=SimpleNamespace(network=network),
            policy=ExitPolicy("cdf", 0.5, lag=1, lookahead=one),
            adaptive=adaptive,
        )
        assert earliest_call(subject) == (1 if one is both else 2)
        return stage_costs(subject)

    assert costs(None) == costs(both, adaptive=False) == (10, 100, 1000)
    assert costs(gate) == (10, 100 + 14, 1000)
    assert costs(both) == (10 + 12, 100 + 14, 1000)


# A recording made by hand, in which a line of the state says when the rule will ask.


def made(
    requests: int = 40,
    seed: int = 0,
    noise: float = 0.3,
    dtype: str = "float32",
    pre_loop: bool = False,
) -> Recorded:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 9, requests)
    offsets = np.cumsum([0, *lengths])
    count = int(offsets[-1])
    due = rng.integers(1 if pre_loop else 2, R + 1, count)
    loop = np.arange(1, R + 1)
    signals = np.where(loop >= due[:, None], 0.9, 0.2 + 0.05 * rng.random((count, R)))
    states = rng.normal(size=(count, R - 1, SIZE))
    soon = np.where(due[:, None] == loop[:-1] + 1, 1.0, -1.0)
    states[:, :, 2] = soon + noise * rng.normal(size=soon.shape)
    preludes = rng.normal(size=(count, SIZE))
    preludes[:, 4] = np.where(due == 1, 1.0, -1.0) + noise * rng.normal(size=count)
    document = StateRecording(
        setting=GateSetting(
            model=ModelIdentity(name="made", files={"model.safetensors": "0" * 64}),
            exit=ExitSettings(rule="cdf", threshold=THRESHOLD, min_loops=1 if pre_loop else 2),
            max_loops=R,
            state_size=SIZE,
            kv_layout="per-loop",
            dtype=dtype,
        ),
        device="cpu",
        workload_hash="0" * 64,
        source="demo",
        tokens=count,
        pre_loop=pre_loop,
        arrays_sha256="",
        seconds=1.0,
        config={},
        manifest=manifest.collect(),
        requests=[
            WorkloadRecord(
                id=str(i),
                task=None,
                doc_id=None,
                prompt=[i, i + 1],
                tokens=[7] * (n + 1),
                executed_depths=[R, *due[offsets[i] : offsets[i + 1]].tolist()],
                requested_depths=[R, *due[offsets[i] : offsets[i + 1]].tolist()],
            )
            for i, n in enumerate(lengths.tolist())
        ],
    )
    return Recorded(
        document,
        states.astype(np.float32),
        signals,
        offsets.astype(np.int64),
        preludes.astype(np.float32) if pre_loop else None,
    )


@pytest.fixture(scope="module", params=["linear", "mlp"])
def fitted(request: pytest.FixtureRequest) -> Fitted:
    return fit(made(120), FitOptions(request.param, seed=3))


def test_a_gate_learns_what_the_state_says(fitted: Fitted) -> None:
    held = fitted.document.held_out
    assert held.precision is not None
    assert held.recall is not None
    assert held.precision > 0.9
    assert held.recall > 0.9
    assert held.exact is not None
    assert held.exact > 0.9
    # Loops come near to lag 0's, and the rule alone at lag 1 takes many more.
    assert held.loops_over_lag0 == pytest.approx(1, abs=0.05)
    assert held.lag1_over_lag0 is not None
    assert held.lag1_over_lag0 > 1.1


def test_its_probabilities_are_calibrated_and_the_threshold_has_the_precision(
    fitted: Fitted,
) -> None:
    calibration = fitted.document.calibration
    assert calibration.precision is not None
    assert calibration.precision >= 0.9
    assert calibration.error is not None
    assert calibration.error < 0.1
    assert calibration.slope > 0
    assert sum(one.decisions for one in calibration.reliability) > 100


def test_fitting_again_gives_the_same_gate(fitted: Fitted) -> None:
    again = fit(made(120), FitOptions(fitted.document.gate, seed=3))
    for name, weight in fitted.gate.weights.items():
        assert torch.equal(weight, again.gate.weights[name])
    assert again.document.threshold == fitted.document.threshold
    assert again.document.held_out == fitted.document.held_out


@pytest.fixture(scope="module", params=["linear", "mlp"])
def fitted_before(request: pytest.FixtureRequest) -> Fitted:
    return fit(made(120, pre_loop=True), FitOptions(request.param, seed=3, pre_loop=True))


def test_a_pre_loop_gate_learns_what_the_prelude_says(fitted_before: Fitted) -> None:
    document = fitted_before.document
    assert document.pre_loop is not None
    assert fitted_before.before is not None
    assert document.pre_loop.threshold == fitted_before.before.threshold
    held = document.held_out
    first = held.by_loop[0]
    assert first.loop == 0
    assert first.asked == held.tokens, "every token is asked about before loop 1"
    assert first.right / first.called > 0.9
    assert first.right / (first.right + first.missed) > 0.9
    assert held.exact is not None
    assert held.exact > 0.9
    assert held.loops_over_lag0 == pytest.approx(1, abs=0.05)
    calibration = document.pre_loop.calibration
    assert calibration.precision is not None
    assert calibration.precision >= 0.9
    assert calibration.error is not None
    assert calibration.error < 0.1
    assert sum(one.decisions for one in calibration.reliability) == held.tokens
    # Its weights cost what they multiply: the prelude's numbers, and no signal.
    expected = 2 * 32 * (SIZE + 1) if document.gate == "mlp" else 2 * SIZE
    assert document.pre_loop.flops_per_row == expected
    assert sum(document.pre_loop.due.values()) == sum(
        depth == 1
        for r in made(120, pre_loop=True).document.requests
        for depth in r.executed_depths
    )


def test_without_one_the_same_tokens_are_due_at_2_at_least() -> None:
    """A recording for a pre-loop gate also makes a gate alone."""
    fitted = fit(made(120, pre_loop=True), FitOptions(seed=3))
    assert fitted.before is None
    assert fitted.document.pre_loop is None
    assert [one.loop for one in fitted.document.held_out.by_loop] == [1, 2, 3]


def test_a_pre_loop_gate_needs_what_the_prelude_gave_and_both_outcomes() -> None:
    with pytest.raises(UsageError, match=r"^--pre-loop: .*predictor record --pre-loop"):
        fit(made(40), FitOptions(pre_loop=True))
    later = made(40, pre_loop=True)
    signals = later.signals.copy()
    signals[:, 0] = 0.1
    never = Recorded(later.document, later.states, signals, later.offsets, later.preludes)
    with pytest.raises(UsageError, match="to fit the pre-loop gate on 0 are followed by an exit"):
        fit(never, FitOptions(pre_loop=True))


def test_requests_are_split_and_no_token_of_one_is_on_two_sides() -> None:
    split = Split.of(50, 0.2, seed=1)
    parts = [set(part.tolist()) for part in (split.train, split.calibrate, split.hold_out)]
    assert [len(part) for part in parts] == [30, 10, 10]
    assert set.union(*parts) == set(range(50))
    other = Split.of(50, 0.2, seed=2)
    assert other.hold_out.tolist() != split.hold_out.tolist()
    recorded = made(50)
    told = fit(recorded, FitOptions(seed=1)).document.trained_on
    assert len(told.prompts) == 40
    counts = [len(recorded.document.requests[i].tokens) - 1 for i in split.hold_out]
    assert told.tokens["hold out"] == sum(counts)


def test_standardising_is_folded_into_the_weights() -> None:
    """Scores do not depend on the scale or the origin of a state's numbers."""
    plain, moved = made(60), made(60)
    scaled = Recorded(
        moved.document, (moved.states * 50 + 7).astype(np.float32), moved.signals, moved.offsets
    )
    one, other = (fit(r, FitOptions(seed=1)).document.held_out for r in (plain, scaled))
    assert one.exact == pytest.approx(other.exact, abs=0.02)
    assert one.precision == pytest.approx(other.precision, abs=0.03)


def test_the_threshold_is_the_most_exact_among_those_precise_enough() -> None:
    given = tokens(SIGNALS)
    p = np.where(PROBABILITIES > 0.5, 0.6, 0.1)
    p[0, 0] = 0.9
    threshold, found = choose_threshold(given, p, FitOptions())
    assert found.precision == 1.0
    assert 0.6 < threshold <= 0.9
    threshold, found = choose_threshold(given, p, FitOptions(least_precision=0.3))
    assert found.exact == 3 / 5, "calling at 0.9 alone leaves the tokens due at R as they are"


def test_reliability_by_hand() -> None:
    p, met = np.array([0.05, 0.15, 0.95, 1.0]), np.array([False, True, True, True])
    bins = reliability(p, met)
    assert [one.decisions for one in bins] == [1, 1, *[0] * 7, 2]
    assert bins[9].mean_probability == pytest.approx(0.975)
    assert bins[5].met is None
    assert calibration_error(bins) == pytest.approx((0.05 + 0.85 + 2 * 0.025) / 4)
    assert calibration_error(reliability(p[:0], met[:0])) is None


def test_too_little_to_fit_on_is_refused() -> None:
    with pytest.raises(UsageError, match="record more requests"):
        fit(made(2), FitOptions())
    still = made(20)
    never = Recorded(still.document, still.states, np.zeros_like(still.signals), still.offsets)
    with pytest.raises(UsageError, match="both outcomes are needed"):
        fit(never, FitOptions())


# Files.


def test_a_recording_reads_back_as_it_was(tmp_path: Path) -> None:
    for dtype in ("float32", "float64"):
        recorded = made(6, dtype=dtype)
        document = write_states(tmp_path / "states", recorded)
        again = read_states(tmp_path / "states")
        assert again.document == document
        assert np.array_equal(again.states, recorded.states)
        if dtype == "float64":
            assert np.array_equal(again.signals, recorded.signals)
        assert again.request_of.tolist() == recorded.request_of.tolist()


def test_what_the_prelude_gave_reads_back_as_it_was(tmp_path: Path) -> None:
    recorded = made(6, pre_loop=True)
    write_states(tmp_path / "states", recorded)
    again = read_states(tmp_path / "states")
    assert again.preludes is not None
    assert recorded.preludes is not None
    assert np.array_equal(again.preludes, recorded.preludes)
    # A document that does not speak of it is not the one it was written with.
    silent = recorded.document.model_copy(update={"pre_loop": False})
    write_states(tmp_path / "states", replace(recorded, document=silent))
    with pytest.raises(UsageError, match="its tensors are offsets, preludes"):
        read_states(tmp_path / "states")


def test_a_damaged_recording_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "states"
    write_states(path, made(6))
    content = path.read_bytes()
    for damaged in (content[:-5], b"", content[:-1] + bytes([content[-1] ^ 1]), b"{}" * 50):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="cdbench predictor record") as caught:
            read_states(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cdbench predictor record"):
        read_states(tmp_path / "none")


def test_a_gate_reads_back_as_it_was(fitted: Fitted, tmp_path: Path) -> None:
    document = write_gate(tmp_path, fitted.document, fitted.gate)
    for source in (tmp_path, tmp_path / GATE_FILE):
        stored = read_gate(str(source))
        assert stored.document == document
        for name, weight in fitted.gate.weights.items():
            assert torch.equal(weight, stored.gate.weights[name])
    look = stored.lookahead(None, torch.device("cpu"))
    assert (look.rule, look.rule_threshold, look.threshold) == ("cdf", 0.5, document.threshold)
    assert stored.lookahead(0.25, torch.device("cpu")).threshold == 0.25
    expected = 2 * 32 * (SIZE + 2) if document.gate == "mlp" else 2 * (SIZE + 1)
    assert look.gate.flops_per_row == expected


def test_a_pre_loop_gate_reads_back_as_it_was(fitted_before: Fitted, tmp_path: Path) -> None:
    assert fitted_before.before is not None
    write_gate(tmp_path, fitted_before.document, fitted_before.gate, fitted_before.before)
    stored = read_gate(str(tmp_path))
    assert stored.before is not None
    for kept, gate in (
        (fitted_before.before.gate, stored.before.gate),
        (fitted_before.gate, stored.gate),
    ):
        assert set(kept.weights) == set(gate.weights)
        assert all(torch.equal(kept.weights[name], gate.weights[name]) for name in kept.weights)
    look = stored.lookahead(None, torch.device("cpu"))
    assert look.earliest == 1
    assert look.pre_loop is not None
    assert look.pre_loop.threshold == fitted_before.before.threshold
    other = stored.lookahead(0.25, torch.device("cpu"))
    assert other.pre_loop is not None
    assert other.pre_loop.threshold == other.threshold == 0.25
    assert "before loop 1 @0.25" in str(other)
    # Without its document's word for it, the second gate is no part of the first.
    path = tmp_path / GATE_FILE
    changed = json.loads(path.read_text())
    changed["pre_loop"] = None
    path.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match=r"its tensors are before\.bias"):
        read_gate(str(tmp_path))


def test_files_of_a_gate_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    one, other = (fit(made(40, seed), FitOptions()) for seed in (0, 1))
    for name, gate in (("a", one), ("b", other)):
        (tmp_path / name).mkdir()
        write_gate(tmp_path / name, gate.document, gate.gate)
    (tmp_path / "a" / GATE_WEIGHTS_FILE).write_bytes(
        (tmp_path / "b" / GATE_WEIGHTS_FILE).read_bytes()
    )
    with pytest.raises(UsageError, match="is not the file"):
        read_gate(str(tmp_path / "a"))
    path = tmp_path / "b" / GATE_FILE
    changed = json.loads(path.read_text())
    changed["setting"]["state_size"] = SIZE + 1
    path.write_text(json.dumps(changed))
    with pytest.raises(UsageError, match="expected"):
        read_gate(str(tmp_path / "b"))
    with pytest.raises(UsageError, match=r"no lookahead\.json"):
        read_gate(str(tmp_path))


# The commands, on a demo model.


def run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predictor") / "states.safetensors"
    argv = ["predictor", "record", "demo-ouro", "--requests", "24", "--tasks", "demo_add"]
    assert main([*argv, "--device", "cpu", "--out", str(path), "--json"]) == 0
    return path


def test_record_fit_and_judge(recording: Path, tmp_path: Path, capsys: Capture) -> None:
    recorded = read_states(recording)
    document = recorded.document
    assert document.setting.exit.rule == "cdf"
    assert (document.setting.exit.min_loops, document.setting.exit.lag) == (2, 0)
    assert document.tokens == sum(len(r.tokens) - 1 for r in document.requests)
    assert not np.isnan(recorded.signals).any()
    # What was executed follows from the signals: they belong to these tokens.
    due = Tokens.of(recorded).due
    assert due.tolist() == [d for r in document.requests for d in r.executed_depths[1:]]

    gate = tmp_path / "gate"
    code, out, _ = run(capsys, "predictor", "fit", str(recording), "--out", str(gate), "--json")
    assert code == 0
    assert json.loads(out)["kind"] == "lookahead"
    argv = ["predictor", "judge", str(gate), "--requests", "6", "--tasks", "demo_add"]
    code, out, _ = run(capsys, *argv, "--device", "cpu", "--json")
    assert code == 0
    judged = GateJudgement.model_validate_json(out)
    assert judged.figures.requests == 6
    assert judged.figures.token_loops_lag0 < judged.figures.token_loops_lag1
    assert sum(one.tokens for one in judged.by_position) == judged.figures.tokens
    code, out, _ = run(capsys, *argv, "--device", "cpu")
    assert code == 0
    assert "By place in the output" in out


def test_record_fit_and_judge_with_a_pre_loop_gate(tmp_path: Path, capsys: Capture) -> None:
    """On a model whose rule asks for most exits after loop 1."""
    states, gate = tmp_path / "states.safetensors", tmp_path / "gate"
    work = ("--tasks", "demo_reverse", "--device", "cpu")
    asked = ("predictor", "record", "demo-ut", "--requests", "30", *work, "--pre-loop")
    code, _, _ = run(capsys, *asked, "--out", str(states), "--json")
    assert code == 0
    recorded = read_states(states)
    assert recorded.document.pre_loop
    assert recorded.document.setting.exit.min_loops == 1
    due = Tokens.of(recorded, pre_loop=True).due
    depths = [d for r in recorded.document.requests for d in r.executed_depths[1:]]
    assert due.tolist() == depths
    assert min(depths) == 1
    assert recorded.preludes is not None
    # Its prelude is the embedding of the token before, and nothing else.
    before = [t for r in recorded.document.requests for t in r.tokens[:-1]]
    same = [i for i, token in enumerate(before) if token == before[0]]
    assert len(same) > 1
    assert (recorded.preludes[same] == recorded.preludes[0]).all()

    code, out, _ = run(capsys, "predictor", "fit", str(states), "--out", str(gate), "--pre-loop")
    assert code == 0
    assert "before loop 1" in out
    assert "prelude" in out
    judging = ("predictor", "judge", str(gate), "--requests", "4", *work)
    code, out, _ = run(capsys, *judging, "--json")
    assert code == 0
    judged = GateJudgement.model_validate_json(out)
    first = judged.figures.by_loop[0]
    assert (first.loop, first.asked) == (0, judged.asked_tokens)
    assert first.called > 0
    assert judged.figures.token_loops < judged.figures.token_loops_lag1


def test_recording_states_changes_no_token(recording: Path) -> None:
    """The recorded text and depths are those of a plain run at lag 0 with a floor of 2."""
    from cdbench.models.loading import load_model
    from cdbench.runtime.core import ExitPolicy, Request
    from cdbench.runtime.engine import Engine
    from cdbench.runtime.engine_config import EngineConfig

    document = read_states(recording).document
    model = load_model("demo-ouro", device="cpu", dtype="float32")
    ran = document.setting.exit
    for record in document.requests[:4]:
        request = Request(
            record.id, record.prompt, exit=ExitPolicy("cdf", ran.threshold, 2), force=record.tokens
        )
        (plain,) = Engine(model.network, EngineConfig()).run([request])
        assert plain.executed_depths == record.executed_depths


def refused(capsys: Capture, *argv: str) -> str:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert all(part in err for part in ("cdbench: ", "; "))
    return err


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--exit-lag", "0"), "lag 0"),
        (("--exit-lag", "1", "--kv", "shared"), "KV layout per-loop"),
        (("--exit-lag", "1", "--max-loops", "3"), "R 4"),
        (("--exit-lag", "1", "--model", "demo-huginn"), "trained on demo-ouro"),
        (("--exit-lag", "1", "--weights", "random:1"), "checkpoint's weights"),
        (("--exit-lag", "1", "--threshold", "1.5"), "no probability"),
    ],
)
def test_a_gate_is_refused_for_anything_else(
    capsys: Capture, argv: tuple[str, ...], why: str
) -> None:
    model = () if "--model" in argv else ("demo-ouro",)
    given = tuple("demo-huginn" if x == "demo-huginn" else x for x in argv if x != "--model")
    if not model:
        model, given = ("demo-huginn",), tuple(x for x in given if x != "demo-huginn")
    full = ("generate", *model, "--prompt", "a", "--exit", "lookahead:demo-ouro", *given)
    assert why in refused(capsys, *full)


def test_what_cannot_be_recorded_is_refused_before_anything_runs(
    capsys: Capture, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "states"))
    model = ("predictor", "record", "demo-ouro")
    assert "at every loop" in refused(capsys, *model, *out, "--exit", "confidence@0.9")
    assert "no signal" in refused(capsys, *model, *out, "--exit", "none")
    assert "--exit cdf@0.99" in refused(
        capsys, *model, *out, "--exit", "lookahead:demo-ouro", "--set", "exit.lag=1"
    )
    floor = ("--pre-loop", "--min-loops", "2")
    assert "no token leaves after loop 1" in refused(capsys, *model, *out, *floor)
    assert "no directory" in refused(capsys, *model, "--out", str(tmp_path / "no" / "states"))
    assert "random token ids" in refused(
        capsys, *model, *out, "--source", "random", "--set", "workload.prompt_tokens=8"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv", [("--kind", "deep"), ("--holdout", "0.5"), ("--holdout", "0"), ("--precision", "2")]
)
def test_impossible_options_of_a_fit_are_refused(
    capsys: Capture, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    given: tuple[Any, ...] = ("predictor", "fit", str(tmp_path / "x"), "--out", str(tmp_path))
    assert argv[0] in refused(capsys, *given, *argv)


# What ships.


@pytest.mark.parametrize("name", ["demo-ouro", "demo-huginn"])
def test_shipped_gates_belong_to_their_models(name: str) -> None:
    from cdbench.models.loading import load_model
    from cdbench.predictor.gate_files import check_setting, find_gate

    stored, model = read_gate(name), load_model(name, device="cpu", dtype="float32")
    check_setting(stored, model, model.network.dims.max_loops, model.card.kv)
    spec = stored.document.setting.exit
    assert model.card.exit == f"{spec.rule}@{spec.threshold:g}"
    held = stored.document.held_out
    assert held.precision is not None
    assert held.precision >= 0.9
    files = [find_gate(name), find_gate(name).with_name(GATE_WEIGHTS_FILE)]
    assert sum(file.stat().st_size for file in files) < 200_000


def test_a_full_report_shows_the_gate_where_there_was_one() -> None:

    without = scripted_result(scripted_blocks(("static", "cdb"), 1))
    assert not predictor_table(without).rows
    label, mode = next(iter(without.modes.items()))
    figures = dict.fromkeys(
        ("predictor_precision", "predictor_recall", "predictor_exact", "predictor_depth_error"), 0.5
    )
    changed = mode.model_copy(update={"metrics": {**mode.metrics, **figures}})
    table = predictor_table(without.model_copy(update={"modes": {**without.modes, label: changed}}))
    assert [column.title for column in table.columns][1:3] == [
        "predictor precision",
        "predictor recall",
    ]
    assert len(table.rows) >= 1
