"""The pre-loop gate of a gate: from what the prelude gave to an exit after loop 1.

It is fitted and calibrated as the other, on the same requests, once the other's threshold stands;
its own is the one that, with the other's calls beside its own, leaves most calibrating tokens at
exactly their depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from cdbench.predictor.calibration import calibration, remarks
from cdbench.predictor.decisions import Tokens, figures, probabilities_before
from cdbench.predictor.thresholds import best_threshold
from cdbench.predictor.training import Examples, calibrate, train
from cdbench.runtime.core import BoolArray, FloatArray
from cdbench.runtime.lookahead import FIRST_LOOP, GateKind, PreLoopGate
from cdbench.schema.lookahead import GateFigures, LoopFigures, PreLoopFigures

NAME = "pre-loop gate"


@dataclass(frozen=True)
class FittedBefore:
    """A pre-loop gate, what is said of it, and the FLOPs that its fitting took."""

    gate: PreLoopGate
    figures: PreLoopFigures
    notes: list[str]
    flops: float


def examples_before(tokens: Tokens) -> Examples:
    """One decision a token: whether the rule asks for an exit after loop 1."""
    assert tokens.preludes is not None, "its tokens have what it reads"
    return Examples(
        torch.from_numpy(tokens.preludes),
        torch.ones(tokens.due.size, dtype=torch.int64),
        torch.from_numpy(asks_at_once(tokens)).float(),
    )


def asks_at_once(tokens: Tokens) -> BoolArray:
    """Which tokens the rule asks to leave after loop 1 ``[N]``."""
    asks: BoolArray = tokens.due == FIRST_LOOP
    return asks


@dataclass(frozen=True)
class Parts:
    """Tokens by what they are for, and what the gate beside gives the calibrating ones."""

    training: Tokens
    tuning: Tokens
    held: Tokens
    probability_NK: FloatArray
    threshold: float


def fit_before(
    kind: GateKind, parts: Parts, falls: bool, seed: int, least_precision: float
) -> FittedBefore:
    """Fit, calibrate and choose the threshold. Both outcomes must be among the decisions."""
    trained = train(kind, examples_before(parts.training), FIRST_LOOP, falls, seed)
    known = examples_before(parts.tuning)
    score_T = trained.gate.logit(known.inputs_TF.float(), known.loop_T - 1)
    gate, slope, offsets = calibrate(trained.gate, score_T, known.loop_T, known.met_T)
    before = PreLoopGate(gate, threshold=1.0)
    threshold, precision = choose_before(
        parts, probabilities_before(before, parts.tuning), least_precision
    )
    before = replace(before, threshold=threshold)
    told = PreLoopFigures(
        threshold=threshold,
        parameters=sum(w.numel() for w in gate.weights.values()),
        flops_per_row=gate.flops_per_row,
        due={
            name: int(asks_at_once(tokens).sum())
            for name, tokens in (
                ("train", parts.training),
                ("calibrate", parts.tuning),
                ("hold out", parts.held),
            )
        },
        calibration=calibration(
            probabilities_before(before, parts.held),
            asks_at_once(parts.held),
            (slope, offsets),
            least_precision,
            precision,
        ),
    )
    notes = remarks(NAME, slope, precision, least_precision)
    return FittedBefore(before, told, notes, trained.flops)


def choose_before(
    parts: Parts, probability_N: FloatArray, least_precision: float
) -> tuple[float, float | None]:
    """The threshold, and the share of its own calls on the calibrating tokens that are right."""

    def tried(threshold: float) -> GateFigures:
        calls: BoolArray = np.asarray(probability_N >= threshold)
        return figures(parts.tuning, parts.probability_NK, parts.threshold, calls)

    threshold, found = best_threshold(
        probability_N, tried, lambda one: _precision(one.by_loop[0]), least_precision
    )
    return threshold, _precision(found.by_loop[0])


def _precision(first: LoopFigures) -> float | None:
    return first.right / first.called if first.called else None
