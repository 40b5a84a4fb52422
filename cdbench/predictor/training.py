"""Fitting the weights of a gate: logistic, every class of equal weight, then scaled to calibrate.

``linear`` has a line of weights for each loop, found by L-BFGS in float64. ``mlp`` has one hidden
layer that all loops share, with a bias of its own for each, trained by AdamW on batches drawn from
the seed. Inputs are standardised while fitting; that is folded into the weights afterwards, and so
is Platt's scaling (Platt 1999), sigmoid(slope · score + offset of the loop), found on requests that
the weights have not seen. The same seed, data and number of threads give the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cdbench.runtime.lookahead import Gate, GateKind, closeness

PENALTY = 1e-3
"""Of the squared weights on standardised inputs, beside the mean loss of a decision."""
LBFGS_STEPS = 200
HIDDEN_UNITS = 32
EPOCHS = 20
LEAST_STEPS = 600
"""Of batches, where an epoch has few."""
BATCH_ROWS = 512
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-2
CERTAIN = 20.0
"""Most logit of a loop at which only one outcome was seen."""


@dataclass(frozen=True)
class Examples:
    """Decisions: inputs ``[T, F]``, the loop of each ``[T]``, whether the rule was met after it."""

    inputs_TF: Tensor
    loop_T: Tensor
    met_T: Tensor

    @staticmethod
    def of(
        state_TD: Tensor, signal_T: Tensor, loop_T: Tensor, met_T: Tensor, falls: bool
    ) -> Examples:
        """From states and signals, as a gate reads them."""
        inputs_TF = torch.cat([state_TD.float(), closeness(signal_T, falls).float()[:, None]], -1)
        return Examples(inputs_TF, loop_T, met_T.float())

    @property
    def count(self) -> int:
        return int(self.loop_T.numel())


@dataclass(frozen=True)
class Trained:
    """A gate, and the FLOPs that its fitting took."""

    gate: Gate
    flops: float


def train(kind: GateKind, examples: Examples, loops: int, falls: bool, seed: int) -> Trained:
    """A gate that may call at loops 1 to ``loops``, not yet calibrated."""
    mean_F = examples.inputs_TF.double().mean(0)
    # An input that never changes says nothing; it stays at 0 once the mean is taken off.
    spread_F = examples.inputs_TF.double().std(0).clamp(min=1e-6)
    scaled_TF = (examples.inputs_TF.double() - mean_F) / spread_F
    scaled = replace(examples, inputs_TF=scaled_TF)
    if kind == "linear":
        weights, flops = _train_linear(scaled, loops)
        weight_KF = weights["weight"] / spread_F
        weights = {"weight": weight_KF, "bias": weights["bias"] - weight_KF @ mean_F}
    else:
        weights, flops = _train_mlp(scaled, loops, seed)
        hidden_HF = weights["hidden"] / spread_F
        weights |= {"hidden": hidden_HF, "hidden_bias": weights["hidden_bias"] - hidden_HF @ mean_F}
    return Trained(Gate(kind, {name: w.float() for name, w in weights.items()}, falls), flops)


def calibrate(
    gate: Gate, score_T: Tensor, loop_T: Tensor, met_T: Tensor
) -> tuple[Gate, float, list[float]]:
    """The gate with Platt's scaling folded in, the slope, and the offset of each loop.

    Found on decisions whose requests the gate was not fitted on: their scores and outcomes. The
    offsets of loops are drawn to one another, so that one with few decisions has the others'.
    """
    scale = torch.zeros(2 + gate.loops, dtype=torch.float64)
    scale[0] = 1.0
    score_T, met_T = score_T.double(), met_T.double()

    def loss() -> Tensor:
        logits_T = scale[0] * score_T + scale[1] + scale[2:][loop_T - 1]
        fit = F.binary_cross_entropy_with_logits(logits_T, met_T)
        return fit + PENALTY * scale[2:].square().sum()

    _minimise(loss, scale)
    slope, offset_K = float(scale[0]), scale[1] + scale[2:]
    last = "weight" if gate.kind == "linear" else "out"
    weights = {
        **gate.weights,
        last: gate.weights[last] * slope,
        "bias": gate.weights["bias"] * slope + offset_K.float(),
    }
    return replace(gate, weights=weights), slope, offset_K.tolist()


def _train_linear(examples: Examples, loops: int) -> tuple[dict[str, Tensor], float]:
    inputs = examples.inputs_TF.shape[1]
    weight_KF = torch.zeros(loops, inputs, dtype=torch.float64)
    bias_K = torch.zeros(loops, dtype=torch.float64)
    flops = 0.0
    for loop in range(1, loops + 1):
        here = examples.loop_T == loop
        met_T = examples.met_T[here].double()
        if met_T.numel() == 0 or bool((met_T == met_T[0]).all()):
            # Without both outcomes there is nothing to tell apart.
            seen = met_T.numel() and bool(met_T[0])
            bias_K[loop - 1] = CERTAIN if seen else -CERTAIN
            continue
        x_TF, weight_T = examples.inputs_TF[here], _class_weights(met_T)
        line = torch.zeros(inputs + 1, dtype=torch.float64)

        def loss(
            x_TF: Tensor = x_TF, met_T: Tensor = met_T, w_T: Tensor = weight_T, line: Tensor = line
        ) -> Tensor:
            logits = x_TF @ line[:-1] + line[-1]
            fit = F.binary_cross_entropy_with_logits(logits, met_T, weight=w_T)
            return fit + PENALTY * line[:-1].square().sum()

        evaluations = _minimise(loss, line)
        flops += 6.0 * evaluations * x_TF.numel()
        weight_KF[loop - 1], bias_K[loop - 1] = line[:-1].detach(), line[-1].detach()
    return {"weight": weight_KF, "bias": bias_K}, flops


def _minimise(loss: Callable[[], Tensor], values: Tensor) -> int:
    """Bring ``values`` to where the loss is least; how often it was computed."""
    values.requires_grad_(True)
    optimiser = torch.optim.LBFGS(
        [values],
        max_iter=LBFGS_STEPS,
        tolerance_grad=1e-7,
        tolerance_change=1e-10,
        line_search_fn="strong_wolfe",
    )
    evaluations = 0

    def closure() -> float:
        nonlocal evaluations
        evaluations += 1
        optimiser.zero_grad()
        now = loss()
        now.backward()  # type: ignore[no-untyped-call]
        return float(now.detach())

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    values.requires_grad_(False)
    return evaluations


def _train_mlp(examples: Examples, loops: int, seed: int) -> tuple[dict[str, Tensor], float]:
    generator = torch.Generator().manual_seed(seed)
    x_TF, inputs = examples.inputs_TF.float(), examples.inputs_TF.shape[1]
    weight_T = _class_weights(examples.met_T)
    drawn = torch.randn(HIDDEN_UNITS, inputs, generator=generator) / inputs**0.5
    values = {
        "hidden": nn.Parameter(drawn),
        "hidden_bias": nn.Parameter(torch.zeros(loops, HIDDEN_UNITS)),
        "out": nn.Parameter(torch.randn(HIDDEN_UNITS, generator=generator) / HIDDEN_UNITS**0.5),
        "bias": nn.Parameter(torch.zeros(loops)),
    }
    optimiser = torch.optim.AdamW(values.values(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = -(-examples.count // BATCH_ROWS)
    epochs = max(EPOCHS, -(-LEAST_STEPS // batches))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    for _ in range(epochs):
        order = torch.randperm(examples.count, generator=generator)
        for rows in torch.split(order, BATCH_ROWS):
            at_T = examples.loop_T[rows] - 1
            hidden_TH = F.silu(x_TF[rows] @ values["hidden"].T + values["hidden_bias"][at_T])
            logits_T = (hidden_TH * values["out"]).sum(-1) + values["bias"][at_T]
            loss = F.binary_cross_entropy_with_logits(
                logits_T, examples.met_T[rows], weight=weight_T[rows]
            )
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    flops = epochs * examples.count * 6.0 * HIDDEN_UNITS * (inputs + 1)
    return {name: value.detach().double() for name, value in values.items()}, flops


def _class_weights(met_T: Tensor) -> Tensor:
    """One weight a decision: either outcome weighs half in all."""
    met = float(met_T.mean())
    if not 0 < met < 1:
        return torch.ones_like(met_T)
    return torch.where(met_T > 0, 0.5 / met, 0.5 / (1 - met))
