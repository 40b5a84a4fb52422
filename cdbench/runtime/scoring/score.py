"""The likelihood of given continuations, each token scored as it would be generated.

The context runs at full depth, the first token is read from its last position, and every later one
is led to by its predecessor, which runs through the exit rule. Where that is exact many tokens run
together (``packed.py``), else one after the other through the engine (``token_by_token.py``); the
scores are the same.

    scores = score(model, EngineConfig(mode="cdb"), [
        Continuation("q1/a", context, tokens, ExitPolicy("cdf", 0.5)), ...
    ])
    for scored in scores:
        print(scored.error or scored.logprob, scored.all_greedy)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import torch

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.runtime.core import Clock, LaunchObserver
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.results import over_budget
from cdbench.runtime.scoring.continuation import Continuation, Scored, fault_of
from cdbench.runtime.scoring.packed import PackedScorer
from cdbench.runtime.scoring.setting import Setting
from cdbench.runtime.scoring.token_by_token import score_token_by_token


@torch.inference_mode()
def score(
    model: StagedModel,
    config: EngineConfig,
    continuations: Iterable[Continuation],
    *,
    packed: bool | None = None,
    advance: Callable[[int], None] | None = None,
    clock: Clock | None = None,
    observer: LaunchObserver | None = None,
) -> list[Scored]:
    """Scores in the order given, in the mode, layout and budget of an engine's configuration.

    ``packed`` False runs all token by token; True insists on packs. ``advance`` is told how many
    more are done. A continuation that is empty, has no context, or does not fit the model or the
    KV budget comes back with ``error`` set, the others with their scores.

    Raises UsageError, before anything runs, where the configuration or an exit policy cannot be
    had on this model, an id occurs twice, or packs are insisted on and would not be exact.
    """
    setting = Setting.of(model, config)
    wanted = [setting.adapted(continuation) for continuation in continuations]
    _check_ids(wanted)
    setting.check_policies(wanted)
    done: dict[str, Scored] = {}
    together, alone = [], []
    for continuation in wanted:
        fault = _fault(setting, continuation)
        if fault is not None:
            done[continuation.id] = Scored.failed(continuation, fault)
        elif packed is not False and setting.can_pack(continuation):
            together.append(continuation)
        else:
            alone.append(continuation)
    if packed and alone:
        raise UsageError(_not_exact(setting, alone[0]))
    if done and advance is not None:
        advance(len(done))
    if together:
        scorer = PackedScorer(setting, together, clock, observer)
        done |= {scored.id: scored for scored in scorer.run(advance)}
    for scored in score_token_by_token(setting, alone, clock, observer, advance):
        done[scored.id] = scored
    return [done[continuation.id] for continuation in wanted]


def _fault(setting: Setting, continuation: Continuation) -> str | None:
    fault = fault_of(continuation, setting.model.dims, setting.max_loops)
    most = setting.most_positions
    if fault is None and most is not None and continuation.positions > most:
        return over_budget(setting.shape, continuation.positions, setting.config.kv_budget_bytes)
    return fault


def _check_ids(continuations: list[Continuation]) -> None:
    counts = Counter(continuation.id for continuation in continuations)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"continuation {twice!r}: occurs twice; give each an id of its own")


def _not_exact(setting: Setting, continuation: Continuation) -> str:
    what = f"continuation {continuation.id!r}: cannot be scored in a pack"
    if not setting.keeps_every_loop:
        why = f"KV layout {setting.config.kv_layout!r} keeps one slot for several loops"
    else:
        why = (
            f"exit rule {continuation.exit.rule!r} reads out at every loop, and this model's coda "
            "has layers"
        )
    return f"{what}: {why}; leave packed unset"
