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
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.kv_cache import slots_of_layout

NEAR_TIE = 1e-9


@dataclass
class Continuation:
    tokens: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_depth: int | None = None
    margins: list[float] = field(default_factory=list)


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

    def logits(self, state: Tensor, positions: list[int]) -> Tensor:
        """The readout of the last position ``[V]``."""
        hidden = self.model.coda(state, self._coda.at(positions))
        return self.model.head(hidden[-1:])[0]


def continue_alone(
    model: StagedModel, request: Request, layout: str, max_loops: int | None = None
) -> Continuation:
    """Greedy or forced continuation of one request by the letter of the semantics."""
    alone = ReferenceModel(model, layout, max_loops)
    out = Continuation()
    prompt = list(request.prompt)
    positions = list(range(len(prompt)))
    state, injection = alone.prelude(prompt, positions)
    for loop in range(1, alone.loops + 1):
        state = alone.core(state, injection, positions, loop)
    logits, depth, requested = alone.logits(state, positions), alone.loops, alone.loops
    while True:
        step = len(out.tokens)
        token = int(logits.argmax()) if request.force is None else request.force[step]
        if request.force is None and token in request.stop_ids and not request.ignore_eos:
            out.stop_depth = depth if step else None
            return out
        best = logits.topk(2).values
        out.margins.append(float(best[0] - best[1]))
        out.tokens.append(token)
        out.executed.append(depth)
        out.requested.append(requested)
        out.logprobs.append(float(logits.log_softmax(-1)[token]))
        if len(out.tokens) == request.new_tokens:
            return out
        logits, depth, requested = _run_token(alone, request, token, step + 1)


def _run_token(
    alone: ReferenceModel, request: Request, token: int, step: int
) -> tuple[Tensor, int, int]:
    """Logits after the exit loop of the token that output ``step`` is read from, and its depths."""
    policy = request.exit
    position = [len(request.prompt) + step - 1]
    state, injection = alone.prelude([token], position)
    rule = _Rule(policy)
    exit_at, requested, logits = alone.loops, 0, None
    scripted = request.replay_depths[step] if request.replay_depths is not None else None
    if scripted is None and policy.rule == "fixed":
        scripted = max(policy.depth or 0, policy.min_loops)
    for loop in range(1, alone.loops + 1):
        state = alone.core(state, injection, position, loop)
        if policy.rule in ("confidence", "margin"):
            logits = alone.logits(state, position)
        met = rule.met(alone, state, logits)
        if met and loop >= policy.min_loops and not requested:
            requested = loop
        if met and loop + policy.lag >= policy.min_loops:
            exit_at = min(exit_at, loop + policy.lag)
        if loop >= (scripted or exit_at):
            break
    if logits is None:
        logits = alone.logits(state, position)
    return logits, loop, requested or loop


class _Rule:
    """An exit rule over the loops of one token, by its formula."""

    def __init__(self, policy: ExitPolicy) -> None:
        self.policy = policy
        self.survival, self.total = 1.0, 0.0

    def met(self, alone: ReferenceModel, state: Tensor, logits: Tensor | None) -> bool:
        threshold = self.policy.threshold or 0.0
        if self.policy.rule == "cdf":
            gate = float(torch.sigmoid(alone.model.exit_logit(state))[0])
            self.total += gate * self.survival
            self.survival *= 1 - gate
            return self.total >= threshold
        if logits is not None:
            best = logits.softmax(-1).topk(2).values
            signal = best[0] if self.policy.rule == "confidence" else best[0] - best[1]
            return float(signal) >= threshold
        return False


def assert_equals_alone(
    model: StagedModel, request: Request, result: RequestResult, layout: str
) -> None:
    """A request served in company equals the reference; near-ties of logits are set aside."""
    alone = continue_alone(model, request, layout)
    if alone.margins and min(alone.margins) < NEAR_TIE:
        return
    assert result.tokens == alone.tokens
    assert result.executed_depths == alone.executed
    assert result.requested_depths == alone.requested
    assert result.stop_depth == alone.stop_depth
    assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-9)
