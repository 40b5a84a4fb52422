"""lm-eval's model over the engine: its requests run in one mode, rule, layout and batch.

Texts are generated all at once. Continuations are scored as they would be generated: the context at
full depth, the tokens forced through the exit rule. Tokens and depths of both stay in ``answers``.

    lm = EngineLM(load_model("demo-ouro"), EngineConfig(mode="cdb"), ExitPolicy("cdf", 0.9))
    scores = evaluate_suite(load_suite(["demo_add"]), lm)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import TemplateLM

from cdbench.evals.answers import Answer, Asked, identified
from cdbench.evals.generating import generate, requests_of
from cdbench.evals.generation import DEFAULT_MAX_TOKENS
from cdbench.evals.likelihood import (
    Pair,
    pair_positions,
    score_pairs,
    score_texts,
    text_positions,
)
from cdbench.evals.point import OperatingPoint
from cdbench.evals.ranks import ALONE, Ranks
from cdbench.evals.text import TextCodec
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy, LaunchObserver, SamplingParams
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig


class EngineLM(TemplateLM):  # type: ignore[misc]
    """One loaded model in one engine configuration, as lm-eval sees a model.

    ``policy`` is what later tokens exit by; full-depth modes ignore it. ``template`` names one of
    the tokenizer's chat templates. ``answers`` grows by one for every request, in lm-eval's order.
    The rest is as in ``OperatingPoint``. UsageError where the model has no tokenizer.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        policy: ExitPolicy | None = None,
        *,
        seed: int = 0,
        sampling: SamplingParams | None = None,
        codec: TextCodec | None = None,
        template: str | None = None,
        ranks: Ranks = ALONE,
        advance: Callable[[int], None] | None = None,
        served: Callable[[Engine], None] | None = None,
        observer: LaunchObserver | None = None,
        scoring_observer: LaunchObserver | None = None,
    ) -> None:
        super().__init__()
        self.point = OperatingPoint(
            model=model,
            codec=codec or TextCodec(model),
            config=config,
            policy=policy or ExitPolicy(),
            seed=seed,
            sampling=sampling,
            advance=advance,
            served=served,
            observer=observer,
            scoring_observer=scoring_observer,
        )
        self.ranks = ranks
        self.answers: list[Answer] = []
        self._template = template
        self._device = model.network.device

    # The model's text.

    @property
    def eot_token_id(self) -> int | None:
        """The end-of-text token; None where the model has none."""
        return self.point.codec.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is scored after: BOS, else EOS. UsageError without either."""
        return self.point.codec.prefix_id

    @property
    def max_length(self) -> int:
        """Positions the model was made for."""
        return self.point.max_length

    @property
    def max_gen_toks(self) -> int:
        """Tokens generated at most where a task does not say."""
        return DEFAULT_MAX_TOKENS

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval tells tokenizers apart by."""
        return self.point.codec.name

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids; by default with the tokenizer's special tokens, BOS never twice."""
        return self.point.codec.encode(string, add_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation in the model's own words. UsageError where it has no template."""
        return self.point.codec.chat(chat_history, add_generation_prompt, self._template)

    # One process among several.

    @property
    def rank(self) -> int:
        """Which process this is, from 0."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes share the documents."""
        return self.ranks.world_size

    def all_gather(self, tensor: Any) -> Any:
        """The tensors of all ranks, one after the other."""
        return self.ranks.all_gather(tensor)

    def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
        """The objects of all ranks at ``dst``; None elsewhere."""
        return self.ranks.gather_object(obj, dst)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.ranks.barrier()

    # The three kinds of request.

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """Texts of (context, arguments) requests; all are submitted at once.

        A refused request has an empty text and an answer with ``error`` set. Raises UsageError,
        before anything runs, for an argument that is not available.
        """
        return [str(answer.response) for answer in self._keep(generate(self.point, requests))]

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """(logprob in nats, greedy) of (context, continuation) requests.

        What cannot be scored is minus infinity, with ``error`` set in its answer.
        """
        asked = [
            replace(what, empty_prompt=not one.args[0])
            for what, one in zip(identified(requests), requests, strict=True)
        ]
        return self._pairs(asked, [self._encoded(*one.args) for one in requests])

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[float]:
        """Logprobs in nats of (text,) requests, each text whole; as ``loglikelihood`` else."""
        answers = score_texts(self.point, identified(requests), list(map(self._text, requests)))
        return [answer.response for answer in self._keep(answers)]  # type: ignore[misc]

    def positions(self, requests: Sequence[Any]) -> list[int]:
        """Positions that each request, of whatever kind, comes to occupy; 0 without an answer."""
        texts = [one for one in requests if one.request_type == "generate_until"]
        generated = iter(requests_of(self.point, texts))
        return [
            next(generated).positions
            if one.request_type == "generate_until"
            else self._scored_positions(one)
            for one in requests
        ]

    def _scored_positions(self, request: Any) -> int:
        if request.request_type == "loglikelihood_rolling":
            return text_positions(self.point, self._text(request))
        return pair_positions(self.point, self._encoded(*request.args))

    def _text(self, request: Any) -> list[int]:
        return self.tok_encode(request.args[0]) if request.args[0] else []

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        asked = [Asked(None, None, n, repeat=0) for n in range(len(requests))]
        return self._pairs(asked, [(context, tokens) for _, context, tokens in requests])

    def _pairs(self, asked: Sequence[Asked], pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        answers = score_pairs(self.point, asked, pairs)
        return [answer.response for answer in self._keep(answers)]  # type: ignore[misc]

    def _encoded(self, context: str, continuation: str) -> Pair:
        """Tokens of both as lm-eval splits them; an empty context becomes the prefix token."""
        if context:
            before, after = self._encode_pair(context, continuation)
            # A context of nothing but spaces belongs to the continuation.
            return list(before) or [self.prefix_token_id], list(after)
        after = self.tok_encode(continuation, add_special_tokens=False)
        prefix = self.prefix_token_id
        # A text that begins with the prefix token brings its own.
        return ([prefix], after) if after[:1] != [prefix] else (after[:1], after[1:])

    def _keep(self, answers: list[Answer]) -> list[Answer]:
        self.answers += answers
        return answers
