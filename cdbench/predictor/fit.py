"""``cdbench predictor fit``: from a recording to a calibrated gate, and what it is worth.

Requests are split by the seed, never tokens: a share is held out, as many calibrate, the others
train. The threshold is the one that, on the calibrating requests, leaves most tokens at exactly
their depth among those whose calls are right often enough.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cdbench import manifest
from cdbench.errors import UsageError
from cdbench.predictor.decisions import Tokens, figures, probabilities
from cdbench.predictor.recording import Recorded
from cdbench.predictor.training import Examples, calibrate, train
from cdbench.runtime.core import BoolArray, FloatArray, IntArray
from cdbench.runtime.exits import RULES, Falling
from cdbench.runtime.lookahead import Gate, GateKind, Watch
from cdbench.schema.lookahead import (
    Calibration,
    GateDocument,
    GateFigures,
    GateTraining,
    GateWatch,
    ReliabilityBin,
    StateRecording,
)

LEAST_PRECISION = 0.9
THRESHOLDS_TRIED = 200
BINS = 10
PROMPT_DIGITS = 12


@dataclass(frozen=True)
class FitOptions:
    """How a gate is fitted. ``holdout``: share of the requests held out; as many calibrate."""

    kind: GateKind = "linear"
    seed: int = 0
    holdout: float = 0.2
    least_precision: float = LEAST_PRECISION


@dataclass(frozen=True)
class Fitted:
    """A gate ready to be written; ``document`` lacks the hash of the weights' file."""

    document: GateDocument
    gate: Gate


@dataclass(frozen=True)
class Split:
    """Requests by place: fitted on, calibrated on, held out."""

    train: IntArray
    calibrate: IntArray
    hold_out: IntArray

    @staticmethod
    def of(requests: int, holdout: float, seed: int) -> Split:
        """UsageError where the share leaves one of the parts empty."""
        held = round(requests * holdout)
        if held < 1 or requests - 2 * held < 1:
            raise UsageError(
                f"--holdout {holdout:g}: of {requests} requests it leaves none to fit on, to "
                "calibrate on or to hold out; record more requests"
            )
        order = np.random.default_rng(seed).permutation(requests)
        return Split(order[2 * held :], order[held : 2 * held], order[:held])


def fit(recorded: Recorded, options: FitOptions) -> Fitted:
    """Fit a gate. UsageError where the recording has too little to fit or to calibrate on."""
    started = manifest.collect([recorded.document.setting.model])
    began_s = time.perf_counter()
    document, setting = recorded.document, recorded.document.setting
    falls = isinstance(RULES[setting.exit.rule], Falling)
    split = Split.of(len(document.requests), options.holdout, options.seed)
    training, tuning, held = (
        Tokens.of(recorded, places) for places in (split.train, split.calibrate, split.hold_out)
    )
    examples = examples_of(training, falls)
    _need_both(examples, "fit on", document)
    trained = train(options.kind, examples, setting.max_loops - 2, falls, options.seed)
    known = examples_of(tuning, falls)
    _need_both(known, "calibrate on", document)
    scores_T = _scores(trained.gate, tuning)
    gate, slope, offsets = calibrate(trained.gate, scores_T, known.loop_T, known.met_T)
    threshold, on_tuning = choose_threshold(tuning, probabilities(gate, tuning), options)
    held_p = probabilities(gate, held)
    notes = _notes(on_tuning, slope, options)
    took_s = time.perf_counter() - began_s
    fitted_on = np.concatenate([split.train, split.calibrate])
    return Fitted(
        GateDocument(
            marks=document.marks,
            notes=[*document.notes, *notes],
            setting=setting,
            gate=options.kind,
            threshold=threshold,
            falls=falls,
            weights_sha256="",
            parameters=sum(w.numel() for w in gate.weights.values()),
            flops_per_row=gate.flops_per_row,
            watch=GateWatch.model_validate(vars(Watch())),
            calibration=_calibration(held, held_p, slope, offsets, on_tuning, options),
            trained_on=GateTraining(
                recording_sha256=document.arrays_sha256,
                workload_hash=document.workload_hash,
                source=document.source,
                seed=options.seed,
                holdout=options.holdout,
                requests={
                    "train": split.train.size,
                    "calibrate": split.calibrate.size,
                    "hold out": split.hold_out.size,
                },
                tokens=_counts(training, tuning, held, lambda part: part.due.size),
                decisions=_counts(training, tuning, held, lambda part: part.decisions()[0].size),
                prompts=[prompt_key(document.requests[int(i)].prompt) for i in sorted(fitted_on)],
                seconds=took_s,
                flops=trained.flops,
                threads=torch.get_num_threads(),
            ),
            held_out=figures(held, held_p, threshold),
            manifest=started,
        ),
        gate,
    )


def prompt_key(prompt: Sequence[int]) -> str:
    """By which a request is known again: the first digits of the sha256 of its prompt's ids."""
    text = ",".join(map(str, prompt))
    return hashlib.sha256(text.encode()).hexdigest()[:PROMPT_DIGITS]


def examples_of(tokens: Tokens, falls: bool) -> Examples:
    """Every decision of some tokens, with its outcome."""
    token, loop = tokens.decisions()
    return Examples.of(
        torch.from_numpy(tokens.states[token, loop - 1]),
        torch.from_numpy(tokens.signals[token, loop - 1]),
        torch.from_numpy(loop),
        torch.from_numpy(tokens.met[token, loop]),
        falls,
    )


def choose_threshold(
    tokens: Tokens, probability_NK: FloatArray, options: FitOptions
) -> tuple[float, GateFigures]:
    """The threshold with most tokens at exactly their depth, its calls right often enough.

    Where no threshold's calls are, the one whose calls are right most often.
    """
    token, loop = tokens.decisions()
    seen = probability_NK[token, loop - 1]
    tried = np.unique(np.quantile(seen, np.linspace(0, 1, THRESHOLDS_TRIED)).clip(1e-6, 1.0))
    found = [(float(x), figures(tokens, probability_NK, float(x))) for x in tried]
    called = [(x, f) for x, f in found if f.precision is not None]
    if not called:
        return found[-1]
    enough = [(x, f) for x, f in called if (f.precision or 0.0) >= options.least_precision]
    if not enough:
        return max(called, key=lambda pair: (pair[1].precision or 0.0, pair[0]))
    return max(enough, key=lambda pair: (pair[1].exact or 0.0, pair[0]))


def _scores(gate: Gate, tokens: Tokens) -> torch.Tensor:
    token, loop = tokens.decisions()
    state = torch.from_numpy(tokens.states[token, loop - 1])
    signal = torch.from_numpy(tokens.signals[token, loop - 1]).float()
    return gate.score(state, signal, torch.from_numpy(loop))


def _counts(
    training: Tokens, tuning: Tokens, held: Tokens, count: Callable[[Tokens], int]
) -> dict[str, int]:
    parts = {"train": training, "calibrate": tuning, "hold out": held}
    return {name: count(part) for name, part in parts.items()}


def _need_both(examples: Examples, what: str, document: StateRecording) -> None:
    met = int(examples.met_T.sum())
    if 0 < met < examples.count:
        return
    ran = document.setting.exit
    raise UsageError(
        f"recording: of {examples.count} decisions to {what} {met} are followed by an exit, and "
        f"both outcomes are needed; record more requests, or another threshold than "
        f"{ran.rule}@{ran.threshold:g}"
    )


def _calibration(
    held: Tokens,
    probability_NK: FloatArray,
    slope: float,
    offsets: list[float],
    on_tuning: GateFigures,
    options: FitOptions,
) -> Calibration:
    token, loop = held.decisions()
    p, met = probability_NK[token, loop - 1], held.met[token, loop]
    bins = reliability(p, met)
    return Calibration(
        slope=slope,
        offsets=offsets,
        least_precision=options.least_precision,
        precision=on_tuning.precision,
        error=calibration_error(bins),
        reliability=bins,
    )


def reliability(probability_T: FloatArray, met_T: BoolArray) -> list[ReliabilityBin]:
    """Decisions by tenths of their probability."""
    place = np.minimum((probability_T * BINS).astype(np.int64), BINS - 1)
    bins = []
    for i in range(BINS):
        here = place == i
        n = int(here.sum())
        bins.append(
            ReliabilityBin(
                low=i / BINS,
                high=(i + 1) / BINS,
                decisions=n,
                mean_probability=float(probability_T[here].mean()) if n else None,
                met=float(met_T[here].mean()) if n else None,
            )
        )
    return bins


def calibration_error(bins: Sequence[ReliabilityBin]) -> float | None:
    """Mean over decisions of |mean probability − share met| of their tenth (Naeini et al. 2015)."""
    total = sum(one.decisions for one in bins)
    if not total:
        return None
    gaps = (
        one.decisions * abs(one.mean_probability - one.met)
        for one in bins
        if one.mean_probability is not None and one.met is not None
    )
    return sum(gaps) / total


def _notes(on_tuning: GateFigures, slope: float, options: FitOptions) -> list[str]:
    notes = []
    if slope <= 0:
        notes.append(
            "on requests that it was not fitted on the gate was no better than chance "
            f"(Platt slope {slope:.3g})"
        )
    if on_tuning.precision is None:
        notes.append("no threshold calls any exit")
    elif on_tuning.precision < options.least_precision:
        notes.append(
            f"no threshold reaches a precision of {options.least_precision:g}: the best has "
            f"{on_tuning.precision:.3g}"
        )
    return notes
