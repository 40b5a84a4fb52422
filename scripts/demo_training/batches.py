"""Documents to tensors, and the stream of training batches.

Batch i is a function of the seed, the batch size and i alone, whoever makes it: background
processes draw whole pools ahead of the training loop, in order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cdbench.workloads.demo_problems import (
    TASKS,
    Problem,
    build_tokenizer,
    is_held_out,
    token_id,
)

#: Documents of a batch, where nothing else is asked for.
BATCH = 48
#: Batches whose documents are drawn together and sorted by length, so that little is padding.
POOL = 4
#: Pools that each background process keeps ready.
AHEAD = 4

Document = tuple[list[int], list[int]]
"""Prompt ids, and completion ids ending in the eos."""


@dataclass(frozen=True)
class Arrays:
    """A batch as plain arrays, which cross from one process to another without shared memory."""

    ids_BT: npt.NDArray[np.int64]
    rows_N: npt.NDArray[np.int64]
    targets_N: npt.NDArray[np.int64]
    later_N: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """B documents padded to T ids, and the N of their B·T rows that predict a completion's word."""

    ids_BT: Tensor
    rows_N: Tensor  # where in the flattened [B·T] these rows lie
    targets_N: Tensor  # the word each of them should give
    later_N: Tensor  # the row processes a generated token: only these may exit early


def encode(problem: Problem, tokenizer: Tokenizer) -> Document:
    """A problem's prompt ids, and its completion ids ending in the eos."""
    prompt, completion = (tokenizer.encode(t).ids for t in (problem.prompt, problem.completion))
    return prompt, [*completion, token_id(tokenizer, "<eos>")]


def pack(documents: list[Document], pad: int) -> Arrays:
    """Documents to one batch."""
    length = max(len(prompt) + len(completion) for prompt, completion in documents) - 1
    ids = np.full((len(documents), length + 1), pad, np.int64)
    predicts = np.zeros((len(documents), length), np.bool_)
    later = np.zeros_like(predicts)
    for row, (prompt, completion) in enumerate(documents):
        start, end = len(prompt), len(prompt) + len(completion)
        ids[row, :end] = prompt + completion
        predicts[row, start - 1 : end - 1] = True
        later[row, start : end - 1] = True
    rows = np.flatnonzero(predicts)
    targets = np.ascontiguousarray(ids[:, 1:]).reshape(-1)[rows]
    return Arrays(np.ascontiguousarray(ids[:, :-1]), rows, targets, later.reshape(-1)[rows])


def to_device(arrays: Arrays, device: torch.device) -> Batch:
    """The batch on its device; the host does not wait for the copy."""

    def move(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    return Batch(
        move(arrays.ids_BT), move(arrays.rows_N), move(arrays.targets_N), move(arrays.later_N)
    )


class TrainingPools(Dataset[list[Arrays]]):
    """Entry p holds batches p·POOL … p·POOL + POOL − 1."""

    def __init__(self, seed: int, tasks: list[str], size: int) -> None:
        self.seed, self.tasks, self.size = seed, tasks, size
        self.tokenizer = build_tokenizer()

    def __getitem__(self, pool: int) -> list[Arrays]:
        rng = random.Random(f"train/{self.seed}/{pool}")
        drawn = [
            self._document(rng, self.tasks[i % len(self.tasks)]) for i in range(POOL * self.size)
        ]
        drawn.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        pad = token_id(self.tokenizer, "<pad>")
        order = rng.sample(range(POOL), POOL)
        return [pack(drawn[part * self.size : (part + 1) * self.size], pad) for part in order]

    def _document(self, rng: random.Random, task: str) -> Document:
        while True:
            problem = TASKS[task](rng)
            if not is_held_out(problem.prompt):
                return encode(problem, self.tokenizer)


@dataclass(frozen=True)
class BatchStream:
    """Where training batches come from; ``workers`` background processes draw them (0: none)."""

    seed: int
    tasks: list[str]
    size: int
    workers: int
    device: torch.device

    def batches(self, first: int, count: int, seed: int | None = None) -> Iterator[Batch]:
        """Batches ``first`` … ``first`` + ``count`` − 1, of another seed where one is given."""
        pools = TrainingPools(self.seed if seed is None else seed, self.tasks, self.size)
        wanted = range(first // POOL, -(-(first + count) // POOL))
        loader: DataLoader[list[Arrays]] = DataLoader(
            pools,
            batch_size=None,
            sampler=list(wanted),
            num_workers=self.workers,
            prefetch_factor=AHEAD if self.workers else None,
            collate_fn=as_drawn,
        )
        index = wanted.start * POOL
        for pool in loader:
            for arrays in pool:
                if first <= index < first + count:  # a resumed run starts within a pool
                    yield to_device(arrays, self.device)
                index += 1


def as_drawn(pool: list[Arrays]) -> list[Arrays]:
    """In place of the loader's own conversion, which would turn the arrays into tensors."""
    return pool
