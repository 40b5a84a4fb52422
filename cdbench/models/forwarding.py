"""A model around another: whatever a subclass leaves alone is the inner model's own."""

from __future__ import annotations

from torch import Tensor

from cdbench.models.base import StageContext, StagedModel, WeightSlot


class ForwardingModel(StagedModel):
    """Answers everything as ``network`` does."""

    def __init__(self, network: StagedModel) -> None:
        super().__init__()
        self.network = network
        self.dims = network.dims

    def prelude(self, ids_T: Tensor, ctx: StageContext) -> tuple[Tensor, Tensor | None]:
        return self.network.prelude(ids_T, ctx)

    def core(self, state_TD: Tensor, injection_TD: Tensor | None, ctx: StageContext) -> Tensor:
        return self.network.core(state_TD, injection_TD, ctx)

    def coda(self, state_TD: Tensor, ctx: StageContext) -> Tensor:
        return self.network.coda(state_TD, ctx)

    def head(self, hidden_TD: Tensor) -> Tensor:
        return self.network.head(hidden_TD)

    def exit_logit(self, state_TD: Tensor) -> Tensor:
        return self.network.exit_logit(state_TD)

    def random_state(self, keys_T: Tensor) -> Tensor:
        return self.network.random_state(keys_T)

    def absorb(self, state_TD: Tensor, readout_TM: Tensor, halt_at_T: Tensor) -> Tensor:
        return self.network.absorb(state_TD, readout_TM, halt_at_T)

    def readout(self, state_TD: Tensor, readout_TM: Tensor) -> Tensor:
        return self.network.readout(state_TD, readout_TM)

    def stage_parameters(self) -> dict[str, list[Tensor]]:
        return self.network.stage_parameters()

    def weight_map(self) -> dict[str, WeightSlot]:
        return self.network.weight_map()
