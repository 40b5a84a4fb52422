"""A gate's decisions over recorded tokens: where a call is possible, and what follows from one.

The same steps as the engine's, on arrays: N tokens, R loops, K = R − 2 loops at which a gate may
call. Depths follow from signals that are recorded, so they are exact for the first token that
leaves elsewhere than it was recorded, and an approximation after it: ``judge`` runs the gate live.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cdbench.metrics.predictor import count_calls
from cdbench.predictor.recording import Recorded, States
from cdbench.runtime.core import BoolArray, ExitPolicy, FloatArray, IntArray
from cdbench.runtime.lookahead import FIRST_CALLED, FIRST_LOOP, Gate, PreLoopGate
from cdbench.schema.lookahead import GateFigures, GateSetting, LoopFigures
from cdbench.workloads.recording import met_tests

MOST_ROWS = 2**15
"""Rows scored at once."""


@dataclass(frozen=True)
class Tokens:
    """Recorded later tokens as a gate meets them; ``preludes`` where a pre-loop gate does too."""

    states: States
    signals: FloatArray
    met: BoolArray
    due: IntArray
    requests: int
    floor: int
    preludes: States | None = None

    @staticmethod
    def of(recorded: Recorded, requests: IntArray | None = None, pre_loop: bool = False) -> Tokens:
        """Those of some requests, by place; of all by default.

        ``pre_loop``: a pre-loop gate can call depth 1. The recording must have what it reads.
        """
        of_token = recorded.request_of
        chosen = np.arange(recorded.offsets.size - 1) if requests is None else requests
        kept = np.isin(of_token, chosen)
        policy = policy_of(recorded.document.setting, FIRST_LOOP if pre_loop else FIRST_CALLED)
        signals = recorded.signals[kept]
        met = met_tests(signals, policy)
        return Tokens(
            recorded.states[kept],
            signals,
            met,
            first_met(met, policy.min_loops),
            int(np.unique(of_token[kept]).size),
            policy.min_loops,
            recorded.preludes[kept] if pre_loop and recorded.preludes is not None else None,
        )

    @property
    def loops(self) -> int:
        """R."""
        return int(self.signals.shape[1])

    def decisions(self) -> tuple[IntArray, IntArray]:
        """Token and loop of every decision: a call is possible, and the rule has not asked yet."""
        loops = np.arange(1, self.loops - 1)
        possible = (loops >= self.floor - 1) & (loops < self.due[:, None])
        token, place = np.nonzero(possible)
        return token, place + 1


def policy_of(setting: GateSetting, earliest: int = FIRST_CALLED) -> ExitPolicy:
    """The rule at lag 0 that a recording was made with, from the earliest depth called on."""
    ran = setting.exit
    return ExitPolicy(ran.rule, ran.threshold, max(earliest, ran.min_loops))


def first_met(met_NR: BoolArray, floor: int) -> IntArray:
    """The first loop from ``floor`` on whose test is met; R where none is: the depth at lag 0."""
    loops = met_NR.shape[1]
    counts = met_NR & (np.arange(1, loops + 1) >= floor)
    depths: IntArray = np.where(counts.any(1), counts.argmax(1) + 1, loops)
    return depths


def probabilities(gate: Gate, tokens: Tokens) -> FloatArray:
    """``[N, K]``: what the gate, in float32, gives the exit after the loop that follows."""
    found = np.zeros((tokens.due.size, tokens.loops - 2))
    for loop in range(1, tokens.loops - 1):
        for begin in range(0, tokens.due.size, MOST_ROWS):
            part = slice(begin, begin + MOST_ROWS)
            state = torch.from_numpy(np.ascontiguousarray(tokens.states[part, loop - 1]))
            signal = torch.from_numpy(tokens.signals[part, loop - 1]).float()
            score = gate.score(state, signal, np.full(len(state), loop))
            found[part, loop - 1] = torch.sigmoid(score).double().numpy()
    return found


def probabilities_before(gate: PreLoopGate, tokens: Tokens) -> FloatArray:
    """``[N]``: what a pre-loop gate, in float32, gives the exit after loop 1."""
    assert tokens.preludes is not None, "its tokens have what it reads"
    parts = [
        gate.probability(torch.from_numpy(tokens.preludes[begin : begin + MOST_ROWS])).double()
        for begin in range(0, tokens.due.size, MOST_ROWS)
    ]
    found: FloatArray = torch.cat(parts).numpy() if parts else np.zeros(0)
    return found


def called_depths(
    tokens: Tokens,
    probability_NK: FloatArray,
    threshold: float,
    before_N: BoolArray | None = None,
) -> IntArray:
    """The depth called for each token; R where none was before the rule asked by itself.

    ``before_N``: whether a pre-loop gate called an exit after loop 1.
    """
    loop = np.arange(1, tokens.loops - 1)
    calls = (probability_NK >= threshold) & (loop >= tokens.floor - 1)
    calls &= loop < tokens.due[:, None]
    depths: IntArray = np.where(calls.any(1), calls.argmax(1) + 2, tokens.loops)
    if before_N is not None and tokens.floor <= FIRST_LOOP:
        depths = np.where(before_N, FIRST_LOOP, depths)
    return depths


def plain_late(tokens: Tokens) -> IntArray:
    """What the rule alone executes at lag 1."""
    asked = first_met(tokens.met, tokens.floor - 1)
    depths: IntArray = np.minimum(asked + 1, tokens.loops)
    return depths


def figures(
    tokens: Tokens,
    probability_NK: FloatArray,
    threshold: float,
    before_N: BoolArray | None = None,
) -> GateFigures:
    """The gate at a threshold over recorded tokens; no request falls back here."""
    called = called_depths(tokens, probability_NK, threshold, before_N)
    executed = np.minimum(called, plain_late(tokens))
    return summarise(tokens, called, executed, plain_late(tokens), tokens.due)


def summarise(
    tokens: Tokens,
    called: IntArray,
    executed: IntArray,
    late: IntArray,
    lag0: IntArray,
    asked: BoolArray | None = None,
) -> GateFigures:
    """Figures of tokens with these depths: called, executed, and by the rule at lag 1 and 0.

    Calls are counted over the tokens ``asked`` about, all by default.
    """
    asked = np.ones(tokens.due.size, np.bool_) if asked is None else asked
    counts = count_calls(called[asked], tokens.due[asked], tokens.loops)
    n = tokens.due.size
    return GateFigures(
        requests=tokens.requests,
        tokens=n,
        precision=counts.precision,
        recall=counts.recall,
        exact=float((executed == tokens.due).mean()) if n else None,
        depth_error=float(np.abs(executed - tokens.due).mean()) if n else None,
        token_loops=int(executed.sum()),
        token_loops_lag0=int(lag0.sum()),
        token_loops_lag1=int(late.sum()),
        by_loop=[
            _at_loop(called[asked], tokens.due[asked], loop)
            for loop in range(tokens.floor - 1, tokens.loops - 1)
        ],
    )


def _at_loop(called: IntArray, due_at: IntArray, loop: int) -> LoopFigures:
    asked = (called > loop) & (due_at > loop)
    calls, due = asked & (called == loop + 1), asked & (due_at == loop + 1)
    return LoopFigures(
        loop=loop,
        asked=int(asked.sum()),
        called=int(calls.sum()),
        right=int((calls & due).sum()),
        missed=int((due & ~calls).sum()),
    )
