"""What an engine configuration means for scoring, and which continuations can be packed."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cdbench.errors import UsageError
from cdbench.grammar import Mode, parse_mode
from cdbench.models.base import StagedModel
from cdbench.models.compiled import compiled
from cdbench.runtime.cache_shape import CacheShape, cache_shape
from cdbench.runtime.core import ExitPolicy
from cdbench.runtime.engine_config import EngineConfig, check_config, check_model
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.runtime.modes import mode_loops
from cdbench.runtime.scoring.continuation import Continuation


@dataclass(frozen=True, eq=False)
class Setting:
    """A model with a checked configuration: the same values as an engine would work with."""

    model: StagedModel
    config: EngineConfig
    mode: Mode
    max_loops: int

    @staticmethod
    def of(model: StagedModel, config: EngineConfig) -> Setting:
        """Raises UsageError where the configuration is malformed or the model cannot do it."""
        check_config(config)
        check_model(config, model)
        mode = parse_mode(config.mode)
        loops = mode_loops(mode, config.max_loops or model.dims.max_loops)
        if config.compile:
            model = compiled(model, config.width or config.max_residents)
        setting = Setting(model, config, mode, loops)
        _ = setting.shape
        return setting

    @functools.cached_property
    def shape(self) -> CacheShape:
        """What one token keeps in the KV cache."""
        layout, dtype = self.config.kv_layout, self.model.dtype
        return cache_shape(self.model.dims, layout, self.max_loops, dtype)

    @functools.cached_property
    def most_positions(self) -> int | None:
        """Positions at full depth that the KV budget holds; None without a budget."""
        budget = self.config.kv_budget_bytes
        return None if budget is None else self.shape.holds(budget)

    @property
    def selects_first(self) -> bool:
        """Whether the exit rule picks the loop that a first token is read from."""
        return self.config.first_token == "select"

    @property
    def random_state(self) -> bool:
        """Whether states before loop 1 are drawn, so that no two requests share any keys."""
        return self.config.state_init == "random"

    @property
    def keeps_every_loop(self) -> bool:
        """Whether each loop writes a slot of its own (layout ``per-loop``, by whatever name)."""
        return self.shape.slots == self.max_loops

    def adapted(self, continuation: Continuation) -> Continuation:
        """As the mode serves it: full-depth modes run rule ``none``."""
        return continuation if self.mode.adaptive else replace(continuation, exit=ExitPolicy())

    def check_policies(self, continuations: Iterable[Continuation]) -> None:
        """Raise UsageError where one of their exit policies cannot be had on this model."""
        for policy in {continuation.exit for continuation in continuations}:
            check_policy(policy, self.model.dims, self.max_loops)
            if policy.rule == "trace":
                raise UsageError(
                    "exit rule 'trace': has no depths for tokens that are scored; use another rule"
                )

    def can_pack(self, continuation: Continuation) -> bool:
        """Whether running all its tokens together, loop by loop, is exact.

        A token of one loop must find what its predecessors left at that loop, whatever they went
        on to do. So each loop needs a slot of its own; and no readout may be needed in the middle
        where the coda has layers, for it would read its predecessors' rows of their last loop,
        which are not there yet. One token alone has no predecessors.

        A lookahead gate is watched from token to token, so it goes token by token.
        """
        if continuation.fed < 1:
            return True
        if continuation.exit.lookahead is not None:
            return False
        reads_out = RULES[continuation.exit.rule].needs is Needs.LOGITS
        return self.keeps_every_loop and not (reads_out and self.model.dims.coda_layers)
