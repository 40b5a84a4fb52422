"""Processes that share a suite's documents, as ``torchrun`` starts them.

Every process builds the whole suite, answers the documents of its rank, and the first one gathers
the answers and scores them once: as if one process had answered all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from cdbench.errors import UsageError


@dataclass(frozen=True)
class Ranks:
    """Which process of how many this is; alone it needs no network."""

    rank: int = 0
    world_size: int = 1

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all ranks in one, along the first dimension (scalars become one entry)."""
        if self.world_size == 1:
            return tensor
        own = tensor.reshape(1) if tensor.dim() == 0 else tensor
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(gathered, own)
        return torch.cat(gathered)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all ranks, in rank order, at ``dst``; None elsewhere."""
        if self.world_size == 1:
            return [obj]
        found: list[Any] | None = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(obj, found, dst=dst)
        return found

    def broadcast(self, obj: Any = None) -> Any:
        """What the first rank says, at every rank."""
        if self.world_size == 1:
            return obj
        said = [obj]
        dist.broadcast_object_list(said, src=0)
        return said[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier()

    def owns(self, position: int) -> bool:
        """Whether the document at this position of its task is this rank's, dealt in turn."""
        return position % self.world_size == self.rank


ALONE = Ranks()


def join_ranks(device: torch.device, environment: Mapping[str, str] | None = None) -> Ranks:
    """The rank that ``torchrun`` gave this process; alone where nobody did.

    On CUDA each rank takes the device of its ``LOCAL_RANK``, and tensors travel by NCCL; objects,
    and all on a CPU, by gloo. UsageError where the variables are unusable.
    """
    given = os.environ if environment is None else environment
    try:
        rank, size = int(given.get("RANK", "0")), int(given.get("WORLD_SIZE", "1"))
        local = int(given.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE, LOCAL_RANK: {error}; start with torchrun") from None
    if not 0 <= rank < size:
        raise UsageError(f"RANK is {rank} of WORLD_SIZE {size}; start with torchrun")
    if size == 1:
        return ALONE
    if not dist.is_initialized():
        if device.type == "cuda":
            torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=size)
    return Ranks(rank, size)
