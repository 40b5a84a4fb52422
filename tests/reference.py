"""An independent engine: one request, one token, one loop at a time, with keys in plain lists.

It shares the model's stages with the runtime and nothing else: no table, no pool, no schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.kv_cache import slots_of_layout


@dataclass
class Continuation:
    tokens: list[int] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)
    requested: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_depth: int | None = None
    margins: list[float] = field(default_factory=list)


class ReferenceContext:
    """Keys and values by (layer, position, slot); a reader falls back to the deepest slot written."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.stored: dict[tuple[int, int], dict[int, tuple[Tensor, Tensor]]] = {}
        self.positions = torch.zeros(0, dtype=torch.int64)
        self.loops = torch.zeros(0, dtype=torch.int64)

    def at(self, positions: list[int], loop: int) -> ReferenceContext:
        self.positions = torch.tensor(positions)
        self.loops = torch.full_like(self.positions, loop)
        return self

    def attend(self, layer: int, q_THE: Tensor, k_TGE: Tensor, v_TGE: Tensor) -> Tensor:
        slot = min(int(self.loops[0]), self.slots)
        for i, position in enumerate(self.positions.tolist()):
            self.stored.setdefault((layer, position), {})[slot] = (k_TGE[i], v_TGE[i])
        out = [self._one(layer, slot, q, p) for q, p in zip(q_THE, self.positions.tolist())]
        return torch.stack(out)

    def _one(self, layer: int, slot: int, q_HE: Tensor, position: int) -> Tensor:
        seen = [self.stored[layer, p] for p in range(position + 1)]
        pairs = [slots[max(s for s in slots if s <= slot)] for slots in seen]
        repeat = q_HE.shape[0] // pairs[0][0].shape[0]
        keys = torch.stack([k for k, _ in pairs]).repeat_interleave(repeat, dim=1)
        values = torch.stack([v for _, v in pairs]).repeat_interleave(repeat, dim=1)
        weights = torch.einsum("he,che->hc", q_HE, keys) / math.sqrt(q_HE.shape[-1])
        return torch.einsum("hc,che->he", weights.softmax(-1), values)


def continue_alone(model: StagedModel, request: Request, layout: str) -> Continuation:
    """Greedy or forced continuation of one request by the letter of the semantics."""
    loops = model.dims.max_loops
    ctx = ReferenceContext(slots_of_layout(layout, loops))
    out = Continuation()
    prompt = list(request.prompt)
    state, injection = model.prelude(torch.tensor(prompt), ctx.at(list(range(len(prompt))), 1))
    for loop in range(1, loops + 1):
        state = model.core(state, injection, ctx.at(list(range(len(prompt))), loop))
    state, depth, requested = state[-1:], loops, loops
    limit = len(request.force) if request.force is not None else request.max_new_tokens
    while True:
        logits = model.head(model.coda(state, ctx))[0]
        step = len(out.tokens)
        token = int(logits.argmax()) if request.force is None else request.force[step]
        if request.force is None and token in request.stop_ids and not request.ignore_eos:
            out.stop_depth = depth
            return out
        best = logits.topk(2).values
        out.margins.append(float(best[0] - best[1]))
        out.tokens.append(token)
        out.executed.append(depth)
        out.requested.append(requested)
        out.logprobs.append(float(logits.log_softmax(-1)[token]))
        if len(out.tokens) == limit:
            return out
        position = len(prompt) + step
        state, depth, requested = _run_token(model, ctx, request.exit, token, position)


def _run_token(
    model: StagedModel, ctx: ReferenceContext, policy: ExitPolicy, token: int, position: int
) -> tuple[Tensor, int, int]:
    state, injection = model.prelude(torch.tensor([token]), ctx.at([position], 1))
    survival, total, exit_at, requested = 1.0, 0.0, model.dims.max_loops, 0
    if policy.rule == "fixed":
        exit_at = max(policy.depth or 0, policy.min_loops)
    for loop in range(1, model.dims.max_loops + 1):
        state = model.core(state, injection, ctx.at([position], loop))
        met = False
        if policy.rule == "cdf":
            gate = float(torch.sigmoid(model.exit_logit(state))[0])
            total, survival = total + gate * survival, survival * (1 - gate)
            met = total >= (policy.threshold or 0.0)
        elif policy.rule in ("confidence", "margin"):
            best = model.head(model.coda(state, ctx))[0].softmax(-1).topk(2).values
            signal = best[0] if policy.rule == "confidence" else best[0] - best[1]
            met = bool(signal >= policy.threshold)
        if met and loop >= policy.min_loops and not requested:
            requested = loop
        if met and loop + policy.lag >= policy.min_loops:
            exit_at = min(exit_at, loop + policy.lag)
        if loop >= exit_at:
            break
    return state, loop, requested or loop
