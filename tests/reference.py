"""An independent engine: one request, one token, one loop at a time, with keys in plain lists.

It shares the model's stages with the runtime and nothing else: no table, no pool, no schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.cache_shape import slots_of_layout
from cdbench.runtime.core import ExitPolicy, Request, RequestResult

NEAR_TIE = 1e-9


@dataclass
class Continuation:
    tokens: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_depth: int | None = None
    margins: list[float] = field(default_factory=list)
    likeliest: list[int] = field(default_factory=list)
    """What greedy decoding would have chosen at each place."""


class ReferenceContext:
    """One stage's keys and values by (layer, position) and slot.

    A reader falls back to the deepest slot written.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.stored: dict[tuple[int, int], dict[int, tuple[Tensor, Tensor]]] = {}
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.loops = torch.zeros(0, dtype=torch.int64)

    def at(self, positions: list[int], loop: int = 1) -> ReferenceContext:
        self.positions = torch.tensor(positions)
        self.loops = torch.full_like(self.positions, loop)
        return self

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        slot = min(int(self.loops[0]), self.slots)
        positions = self.positions.tolist()
        for i, position in enumerate(positions):
            self.stored.setdefault((layer, position), {})[slot] = (k_TGE[i], v_TGE[i])
        out = [self._one(layer, slot, q, p) for q, p in zip(q_THE, positions, strict=True)]
        return torch.stack(out)

    def _one(self, layer: int, slot: int, q_HE: Tensor, position: int) -> Tensor:
        seen = [self.stored[layer, p] for p in range(position + 1)]
        pairs = [slots[max(s for s in slots if s <= slot)] for slots in seen]
        repeat = q_HE.shape[0] // pairs[0][0].shape[0]
        keys = torch.stack([k for k, _ in pairs]).repeat_interleave(repeat, dim=1)
        values = torch.stack([v for _, v in pairs]).repeat_interleave(repeat, dim=1)
        weights = torch.einsum("he,che->hc", q_HE, keys) / math.sqrt(q_HE.shape[-1])
        return torch.einsum("hc,che->he", weights.softmax(-1), values)


class ReferenceModel:
    """A model with the keys and values of one request; the boundary stages keep one slot."""

    def __init__(self, model: StagedModel, layout: str, max_loops: int | None) -> None:
        self.model = model
        self.loops = max_loops or model.dims.max_loops
        self._prelude, self._coda = ReferenceContext(1), ReferenceContext(1)
        self._core = ReferenceContext(slots_of_layout(layout, self.loops))

    def prelude(self, ids: list[int], positions: list[int]) -> tuple[Tensor, Tensor | None]:
        return self.model.prelude(torch.tensor(ids), self._prelude.at(positions))

    def core(
        self, state: Tensor, injection: Tensor | None, positions: list[int], loop: int
    ) -> Tensor:
        return self.model.core(state, injection, self._core.at(positions, loop))

    def new_readout(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.model.dims.readout_values, dtype=torch.float64)

    def absorb(self, state: Tensor, readout: Tensor, halt_at: float) -> Tensor:
        return self.model.absorb(state, readout, torch.full((len(state),), halt_at))

    def logits(self, state: Tensor, positions: list[int]) -> Tensor:
        """The readout of the last position ``[V]``."""
        hidden = self.model.coda(state, self._coda.at(positions))
        return self.model.head(hidden[-1:])[0]


def continue_alone(
    model: StagedModel,
    request: Request,
    layout: str,
    max_loops: int | None = None,
    first_token: str = "full",
) -> Continuation:
    """Greedy or forced continuation of one request by the letter of the semantics."""
    alone = ReferenceModel(model, layout, max_loops)
    out = Continuation()
    logits, requested = _read_prompt(alone, request, first_token == "select")
    depth = alone.loops
    while True:
        step = len(out.tokens)
        token = int(logits.argmax()) if request.force is None else request.force[step]
        if request.force is None and token in request.stop_ids and not request.ignore_eos:
            out.stop_depth = depth if step else None
            return out
        best = logits.topk(2).values
        out.margins.append(float(best[0] - best[1]))
        out.likeliest.append(int(logits.argmax()))
        out.tokens.append(token)
        out.executed.append(depth)
        out.requested.append(requested)
        out.logprobs.append(float(logits.log_softmax(-1)[token]))
        if len(out.tokens) == request.new_tokens:
            return out
        logits, depth, requested = _run_token(alone, request, token, step + 1)


def _read_prompt(alone: ReferenceModel, request: Request, select: bool) -> tuple[Tensor, int]:
    """Logits of the first token and the loop they are read from."""
    prompt = list(request.prompt)
    positions = list(range(len(prompt)))
    state, injection = alone.prelude(prompt, positions)
    readout = alone.new_readout(len(prompt))
    halt_at = _halt_at(request.exit) if select else 1.0
    loops: list[tuple[Tensor, Tensor, Tensor]] = []
    for loop in range(1, alone.loops + 1):
        before, state = state, alone.core(state, injection, positions, loop)
        readout = alone.absorb(state, readout, halt_at)
        loops.append((before[-1:], state[-1:], readout[-1:]))
    logits = alone.logits(alone.model.readout(state, readout), positions)
    if not select:
        return logits, alone.loops
    # The coda reads the last position anew at every loop, and at the last one again at the end.
    rule, picked, last = _Rule(request.exit, alone), alone.loops, positions[-1:]
    for loop, (before, state, readout) in enumerate(loops, start=1):
        here = alone.logits(alone.model.readout(state, readout), last)
        if rule.met(before, state, readout, here) and loop >= request.exit.min_loops:
            picked, logits = loop, here
            break
    alone.logits(alone.model.readout(*loops[-1][1:]), last)
    return logits, picked


def _halt_at(policy: ExitPolicy) -> float:
    return policy.threshold or 0.0 if policy.rule == "act" else 1.0


def _run_token(
    alone: ReferenceModel, request: Request, token: int, step: int
) -> tuple[Tensor, int, int]:
    """Logits after the exit loop of the token that output ``step`` is read from, and its depths."""
    policy = request.exit
    position = [len(request.prompt) + step - 1]
    state, injection = alone.prelude([token], position)
    readout = alone.new_readout(1)
    rule = _Rule(policy, alone)
    exit_at, requested = alone.loops, 0
    scripted = request.replay_depths[step] if request.replay_depths is not None else None
    if scripted is None and policy.rule == "fixed":
        scripted = max(policy.depth or 0, policy.min_loops)
    for loop in range(1, alone.loops + 1):
        before, state = state, alone.core(state, injection, position, loop)
        readout = alone.absorb(state, readout, _halt_at(policy))
        # A readout overwrites the token's one coda row, so reading at every loop is harmless.
        logits = alone.logits(alone.model.readout(state, readout), position)
        met = rule.met(before, state, readout, logits)
        if met and loop >= policy.min_loops and not requested:
            requested = loop
        if met and loop + policy.lag >= policy.min_loops:
            exit_at = min(exit_at, loop + policy.lag)
        if loop >= (scripted or exit_at):
            break
    return logits, loop, requested or loop


class _Rule:
    """An exit rule over the loops of one token, by its formula."""

    def __init__(self, policy: ExitPolicy, alone: ReferenceModel) -> None:
        self.policy, self.model = policy, alone.model
        vocab = alone.model.dims.vocab_size
        self.survival, self.total = 1.0, 0.0
        self.entropy = 100.0
        self.probs = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
        self.best, self.repeats = -1, 0

    def met(self, before: Tensor, state: Tensor, readout: Tensor, logits: Tensor) -> bool:
        if self.policy.rule in ("none", "fixed", "trace"):
            return False
        name = self.policy.rule.replace("-", "_")
        threshold = self.policy.threshold or 0.0
        if name == "cdf":
            return self._cdf(state) >= threshold
        if name == "act":
            return float(readout[0, 0]) >= threshold
        if name in ("latent_diff", "cosine"):
            now, was = state[0], before[0]
            if name == "latent_diff":
                return float((now - was).norm() / now.norm()) < threshold
            sizes = float(now.norm() * was.norm())
            return 1 - (float(now @ was) / sizes if sizes else 0.0) < threshold
        signal, falls = getattr(self, f"_{name}")(logits.softmax(-1))
        return bool(signal < threshold if falls else signal >= threshold)

    def _cdf(self, state: Tensor) -> float:
        gate = float(torch.sigmoid(self.model.exit_logit(state))[0])
        self.total += gate * self.survival
        self.survival *= 1 - gate
        return self.total

    def _confidence(self, probs: Tensor) -> tuple[float, bool]:
        return float(probs.max()), False

    def _margin(self, probs: Tensor) -> tuple[float, bool]:
        best = probs.topk(2).values
        return float(best[0] - best[1]), False

    def _entropy_diff(self, probs: Tensor) -> tuple[float, bool]:
        entropy = -sum(p * math.log(p + 1e-10) for p in probs.tolist())
        change, self.entropy = abs(entropy - self.entropy), entropy
        return change, True

    def _kl(self, probs: Tensor) -> tuple[float, bool]:
        pairs = zip(self.probs.tolist(), probs.tolist(), strict=True)
        divergence = sum(p * (math.log(p) - math.log(q)) for p, q in pairs)
        self.probs = probs
        return divergence, True

    def _minp_kl(self, probs: Tensor) -> tuple[float, bool]:
        kept = [p if p >= 0.1 * float(probs.max()) else 1 / len(probs) for p in probs.tolist()]
        return self._kl(torch.tensor(kept, dtype=torch.float64) / sum(kept))

    def _argmax_stability(self, probs: Tensor) -> tuple[float, bool]:
        best = int(probs.argmax())
        self.repeats = self.repeats + 1 if best == self.best else 0
        self.best = best
        return self.repeats, False


def assert_equals_alone(
    model: StagedModel,
    request: Request,
    result: RequestResult,
    layout: str,
    first_token: str = "full",
) -> None:
    """A request served in company equals the reference; near-ties of logits are set aside."""
    alone = continue_alone(model, request, layout, first_token=first_token)
    if alone.margins and min(alone.margins) < NEAR_TIE:
        return
    assert result.tokens == alone.tokens
    assert result.executed_depths == alone.executed
    assert result.requested_depths == alone.requested
    assert result.stop_depth == alone.stop_depth
    assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-9)
