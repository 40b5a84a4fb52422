"""Requests served alone, with every readout seen, and in company.

Arrivals are on a clock that counts its own readings, so that a service is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from cdbench.errors import CdbenchError
from cdbench.models.base import StagedModel
from cdbench.models.forwarding import ForwardingModel
from cdbench.runtime.core import Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES

Tell = Callable[[int], None]
"""Told how many requests have ended."""


class CountingClock:
    """Time that moves by one at each reading and jumps where the engine would wait."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def wait_until(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)


@dataclass(frozen=True)
class Step:
    """The readout that a token came from: its best logit's lead, and its largest logit by size."""

    margin: float
    scale: float


@dataclass
class Served:
    """Results by request; with ``steps`` and ``logits`` where each request was served alone.

    Both have a line per token, and one more where a stop token ended the request.
    """

    results: dict[str, RequestResult] = field(default_factory=dict)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    logits: dict[str, Tensor] = field(default_factory=dict)
    """``[tokens, V]`` each, only where they were asked for."""


class Leak(CdbenchError):
    """An engine held something after its last request."""


class WatchedModel(ForwardingModel):
    """The same model, but what its head answers is kept in ``seen``."""

    def __init__(self, network: StagedModel) -> None:
        super().__init__(network)
        self.seen: list[Tensor] = []

    def head(self, hidden_TD: Tensor) -> Tensor:
        logits_TV = super().head(hidden_TD)
        self.seen.append(logits_TV)
        return logits_TV


def serve(
    network: StagedModel, config: EngineConfig, requests: Sequence[Request], tell: Tell
) -> tuple[dict[str, RequestResult], Engine]:
    """Serve requests together: results, and the engine with its counters. Leak where it leaks."""
    engine = Engine(network, config, clock=CountingClock())
    results = {}
    for result in engine.run(requests):
        results[result.id] = result
        tell(1)
    check_empty(engine)
    return results, engine


def check_empty(engine: Engine) -> None:
    """Raise Leak where an engine without requests still holds rows or tokens."""
    engine.cache.clear_prefixes()
    if engine.cache.rows_in_use or engine.schedule.in_flight or not engine.idle:
        raise Leak(
            f"after its last request the engine still holds {engine.cache.rows_in_use} KV rows "
            f"and {engine.schedule.in_flight} tokens"
        )


def serve_alone(
    network: StagedModel,
    config: EngineConfig,
    requests: Sequence[Request],
    tell: Tell,
    *,
    keep_logits: bool = False,
) -> Served:
    """Serve every request in an engine of its own, and see every readout."""
    watched = WatchedModel(network)
    served = Served()
    for request in requests:
        watched.seen.clear()
        ((name, result),) = serve(watched, config, [request], tell)[0].items()
        logits_NV = _readouts(watched.seen, request, result)
        served.results[name] = result
        served.steps[name] = steps_of(logits_NV)
        if keep_logits:
            served.logits[name] = logits_NV
    return served


def steps_of(logits_NV: Tensor) -> list[Step]:
    """Margin and scale of each row."""
    best = logits_NV.double().topk(2, dim=-1).values
    scales = logits_NV.double().abs().amax(-1).tolist()
    margins = (best[:, 0] - best[:, 1]).tolist()
    return [Step(margin, scale) for margin, scale in zip(margins, scales, strict=True)]


def _readouts(seen: list[Tensor], request: Request, result: RequestResult) -> Tensor:
    """The readout ``[tokens, V]`` that each token was chosen from.

    A rule that needs logits reads out at every loop; a token comes from the last of its own.
    """
    every_loop = RULES[request.exit.rule].needs is Needs.LOGITS
    loops = [depth if every_loop else 1 for depth in result.executed_depths[1:]]
    last = [count - 1 for count in accumulate([1, *loops])] if result.tokens else []
    if (last[-1] if last else -1) + 1 < len(seen):
        last.append(len(seen) - 1)  # the stop token's
    return torch.cat([seen[i] for i in last])
