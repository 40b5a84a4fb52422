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
from cdbench.predictor.calibration import calibration, remarks
from cdbench.predictor.decisions import (
    Tokens,
    figures,
    probabilities,
    probabilities_before,
)
from cdbench.predictor.pre_loop import (
    NAME,
    FittedBefore,
    Parts,
    examples_before,
    fit_before,
)
from cdbench.predictor.recording import Recorded
from cdbench.predictor.thresholds import best_threshold
from cdbench.predictor.training import Examples, calibrate, train
from cdbench.runtime.core import FloatArray, IntArray
from cdbench.runtime.exit_rule import Falling
from cdbench.runtime.exits import RULES
from cdbench.runtime.lookahead import Gate, GateKind, PreLoopGate, Watch
from cdbench.schema.lookahead import (
    GateDocument,
    GateFigures,
    GateTraining,
    GateWatch,
    StateRecording,
)

LEAST_PRECISION = 0.9
PROMPT_DIGITS = 12


@dataclass(frozen=True)
class FitOptions:
    """How a gate is fitted. ``holdout``: share of the requests held out; as many calibrate.

    ``pre_loop``: with a pre-loop gate beside it, of the same kind.
    """

    kind: GateKind = "linear"
    seed: int = 0
    holdout: float = 0.2
    least_precision: float = LEAST_PRECISION
    pre_loop: bool = False


@dataclass(frozen=True)
class Fitted:
    """A gate ready to be written; ``document`` lacks the hash of the weights' file.

    ``before``: its pre-loop gate.
    """

    document: GateDocument
    gate: Gate
    before: PreLoopGate | None = None


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
    if options.pre_loop:
        _need_preludes(recorded)
    split = Split.of(len(document.requests), options.holdout, options.seed)
    training, tuning, held = (
        Tokens.of(recorded, places, options.pre_loop)
        for places in (split.train, split.calibrate, split.hold_out)
    )
    examples = examples_of(training, falls)
    _need_both(examples, "fit on", document)
    trained = train(options.kind, examples, setting.max_loops - 2, falls, options.seed)
    known = examples_of(tuning, falls)
    _need_both(known, "calibrate on", document)
    scores_T = _scores(trained.gate, tuning)
    gate, slope, offsets = calibrate(trained.gate, scores_T, known.loop_T, known.met_T)
    tuning_p, held_p = probabilities(gate, tuning), probabilities(gate, held)
    threshold, on_tuning = choose_threshold(tuning, tuning_p, options)
    notes = remarks("gate", slope, on_tuning.precision, options.least_precision)
    before, calls = None, None
    if options.pre_loop:
        parts = Parts(training, tuning, held, tuning_p, threshold)
        before = _fit_before(parts, falls, options, document)
        calls = probabilities_before(before.gate, held) >= before.gate.threshold
        notes += before.notes
    token, loop = held.decisions()
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
            calibration=calibration(
                held_p[token, loop - 1],
                held.met[token, loop],
                (slope, offsets),
                options.least_precision,
                on_tuning.precision,
            ),
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
                flops=trained.flops + (before.flops if before is not None else 0.0),
                threads=torch.get_num_threads(),
            ),
            pre_loop=None if before is None else before.figures,
            held_out=figures(held, held_p, threshold, calls),
            manifest=started,
        ),
        gate,
        None if before is None else before.gate,
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
    """The gate's threshold and its figures there, on the calibrating tokens."""
    token, loop = tokens.decisions()
    return best_threshold(
        probability_NK[token, loop - 1],
        lambda threshold: figures(tokens, probability_NK, threshold),
        lambda found: found.precision,
        options.least_precision,
    )


def _scores(gate: Gate, tokens: Tokens) -> torch.Tensor:
    token, loop = tokens.decisions()
    state = torch.from_numpy(tokens.states[token, loop - 1])
    signal = torch.from_numpy(tokens.signals[token, loop - 1]).float()
    return gate.score(state, signal, loop)


def _counts(
    training: Tokens, tuning: Tokens, held: Tokens, count: Callable[[Tokens], int]
) -> dict[str, int]:
    parts = {"train": training, "calibrate": tuning, "hold out": held}
    return {name: count(part) for name, part in parts.items()}


def _fit_before(
    parts: Parts, falls: bool, options: FitOptions, document: StateRecording
) -> FittedBefore:
    for tokens, what in ((parts.training, "fit"), (parts.tuning, "calibrate")):
        _need_both(examples_before(tokens), f"{what} the {NAME} on", document)
    return fit_before(options.kind, parts, falls, options.seed, options.least_precision)


def _need_preludes(recorded: Recorded) -> None:
    if recorded.preludes is None:
        raise UsageError(
            "--pre-loop: the recording lacks what the prelude gave, and no token of it could leave "
            "after loop 1; record it again with `cdbench predictor record --pre-loop`"
        )


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
