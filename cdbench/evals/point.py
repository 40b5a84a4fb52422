"""One operating point: the model, engine configuration and exit policy that answer a suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdbench.evals.text import TextCodec
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy, LaunchObserver, SamplingParams
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.scoring.continuation import Continuation, Scored
from cdbench.runtime.scoring.score import score


@dataclass(frozen=True)
class OperatingPoint:
    """What answers, and who watches. ``seed`` keys sampled texts.

    ``sampling`` takes the place of what a task says about drawing its texts. ``advance`` is told
    how many more requests are done, ``served`` of the engine that generated them. The observers see
    the launches of generated and of scored tokens apart.
    """

    model: LoadedModel
    codec: TextCodec
    config: EngineConfig
    policy: ExitPolicy
    seed: int = 0
    sampling: SamplingParams | None = None
    advance: Callable[[int], None] | None = None
    served: Callable[[Engine], None] | None = None
    observer: LaunchObserver | None = None
    scoring_observer: LaunchObserver | None = None

    @property
    def max_length(self) -> int:
        """Positions the model was made for."""
        return self.model.network.dims.max_positions

    def score(self, continuations: Sequence[Continuation]) -> list[Scored]:
        """Their scores, in order, each as it would be generated here."""
        return score(
            self.model.network,
            self.config,
            continuations,
            advance=self.advance,
            observer=self.scoring_observer,
        )
