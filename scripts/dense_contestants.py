"""Three ways to continue the same prompts with the same Llama weights, greedily, on a CPU.

Each gets token ids and lengths and gives token ids back: nobody reads or writes text, nobody stops
early, and each makes the keys and values of the prompts itself. They differ in what they do with a
batch whose requests are not alike:

- ``cdbench dense``: continuous batching, as every mode of cdbench does it;
- ``generate``: ``transformers``' own, a padded batch at a time; a batch runs until its longest
  output is done, and only then does the next one start;
- ``continuous batching``: ``transformers``' own, over a paged cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

# Everything is read from a directory: nothing is to be looked for elsewhere.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers.utils import logging as transformers_logging

from cdbench.models.loading import load_model
from cdbench.runtime.core import Request
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig

PREFILL_TOKENS = 2048
"""Most tokens of a launch with prompts in it."""
PAGE_TOKENS = 32
"""Of the paged cache: its default of 256 is longer than a whole request here."""
ANSWER_S = 1.0
"""How long to wait for a result before looking whether the thread that makes it still lives."""

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """Prompts and how many tokens each is continued by."""

    prompts: tuple[Ids, ...]
    outputs: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)

    @property
    def longest(self) -> int:
        """Positions of the longest request."""
        return max(len(p) + n for p, n in zip(self.prompts, self.outputs, strict=True))


@dataclass(frozen=True)
class Sizes:
    """Of a Llama with random weights."""

    hidden: int = 1024
    layers: int = 6
    heads: int = 16
    intermediate: int = 2816
    vocabulary: int = 8192
    positions: int = 1024


Serve = Callable[[Work], list[list[int]]]
"""Continue all prompts; the continuations in their order."""


class Contestant(Protocol):
    """One way to serve."""

    name: str

    def ready(self) -> AbstractContextManager[Serve]:
        """While the context lasts it can serve; getting ready for that is not timed."""


class DoesNotRunError(Exception):
    """A contestant cannot serve on this machine; the text says why."""


def save_random_llama(directory: Path, sizes: Sizes) -> None:
    """Write a Llama checkpoint with random weights, as ``transformers`` does; no stop tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=sizes.positions,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(directory)


def contestants(directory: Path, dtype: str, width: int, longest: int) -> list[Contestant]:
    """All three on one checkpoint; the two of ``transformers`` have one model between them."""
    transformers_logging.set_verbosity_error()
    model = transformers.LlamaForCausalLM.from_pretrained(
        directory, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    network = load_model(str(directory), dtype=dtype, device="cpu").network
    config = EngineConfig(
        mode="dense:llama", max_residents=width, width=width, prefill_tokens=PREFILL_TOKENS
    )
    return [
        Cdbench(Engine(network, config)),
        Generate(model, width),
        ContinuousBatching(model, width, longest),
    ]


class Cdbench:
    """Mode ``dense``."""

    name = "cdbench dense"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ready(self) -> AbstractContextManager[Serve]:
        return nullcontext(self._serve)

    def _serve(self, work: Work) -> list[list[int]]:
        pairs = zip(work.prompts, work.outputs, strict=True)
        requests = [
            Request(str(number), prompt, max_new_tokens=tokens, ignore_eos=True)
            for number, (prompt, tokens) in enumerate(pairs)
        ]
        found = {result.id: result.tokens for result in self._engine.run(requests)}
        return [found[request.id] for request in requests]


class Generate:
    """``generate`` with a KV cache, prompts padded on the left."""

    name = "generate"

    def __init__(self, model: Any, width: int) -> None:
        self._model, self._width = model, width

    def ready(self) -> AbstractContextManager[Serve]:
        return nullcontext(self._serve)

    def _serve(self, work: Work) -> list[list[int]]:
        found = []
        for begin in range(0, len(work.prompts), self._width):
            part = slice(begin, begin + self._width)
            found += self._batch(work.prompts[part], work.outputs[part])
        return found

    def _batch(self, prompts: Sequence[Ids], outputs: Sequence[int]) -> list[list[int]]:
        padded = max(map(len, prompts))
        ids = torch.zeros((len(prompts), padded), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for line, prompt in enumerate(prompts):
            ids[line, padded - len(prompt) :] = torch.tensor(prompt)
            mask[line, padded - len(prompt) :] = 1
        settings = _greedy(max_new_tokens=max(outputs), use_cache=True)
        with torch.inference_mode():
            whole = self._model.generate(ids, attention_mask=mask, generation_config=settings)
        lines = whole[:, padded:].tolist()
        return [line[:tokens] for line, tokens in zip(lines, outputs, strict=True)]


class ContinuousBatching:
    """What ``generate_batch`` does, with a length for each request.

    The manager and its cache are kept from one run to the next, as a server would; its thread is
    started and ended outside of what is timed.
    """

    name = "continuous batching"

    def __init__(self, model: Any, width: int, longest: int) -> None:
        self._model = model
        blocks = (-(-longest // PAGE_TOKENS) + 1) * width
        self._settings = transformers.ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=blocks,
            max_batch_tokens=PREFILL_TOKENS,
            max_requests_per_batch=width,
            # Prompts have nothing in common: looking for it would only cost.
            allow_block_sharing=False,
            use_cuda_graph=False,
            use_async_batching=False,
            auto_switch_to_flash=False,
        )

    @contextmanager
    def ready(self) -> Iterator[Serve]:
        with (
            torch.inference_mode(),
            self._model.continuous_batching_context_manager(
                generation_config=_greedy(),
                continuous_batching_config=self._settings,
                persistent_manager=True,
                warmup=False,
            ) as manager,
        ):
            yield partial(_through, manager)


def _through(manager: Any, work: Work) -> list[list[int]]:
    """Hand all requests to a manager whose thread runs, and wait for what they become."""
    numbers = {}
    for number, prompt in enumerate(work.prompts):
        name = manager.add_request(list(prompt), max_new_tokens=work.outputs[number])
        numbers[name] = number
    found: dict[int, list[int]] = {}
    while len(found) < len(numbers):
        result = manager.get_result(timeout=ANSWER_S)
        if result is None:
            if not manager.is_running():
                raise DoesNotRunError("its thread ended without a word")
        elif result.error is not None:
            raise DoesNotRunError(str(result.error).strip().splitlines()[-1])
        elif result.is_finished():
            found[numbers[result.request_id]] = list(result.generated_tokens)
    return [found[number] for number in range(len(numbers))]


def _greedy(**settings: Any) -> Any:
    """No sampling and no stop: token −1 is none."""
    return transformers.GenerationConfig(
        do_sample=False, eos_token_id=-1, pad_token_id=0, **settings
    )
