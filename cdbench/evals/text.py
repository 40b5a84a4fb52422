"""Text to tokens and back as lm-eval's own Hugging Face model does it, for the same checkpoint.

A checkpoint with a ``tokenizer_config.json`` says there what its tokenizer adds, which special
tokens it has and how a conversation is written: then the library's tokenizer reads it. One without
has only the token table, and its special tokens are those of its generation configuration.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lm_eval.models.utils import has_bos_prefix

from cdbench.errors import UsageError
from cdbench.models.config_reader import read_json
from cdbench.models.loading import LoadedModel

Turns = Sequence[dict[str, str]]


class TextCodec:
    """The tokenizer of one model. UsageError where it has none, or one that cannot be read."""

    def __init__(self, model: LoadedModel) -> None:
        if model.tokenizer is None:
            raise UsageError(
                f"model {model.name!r}: has no tokenizer.json; tasks are text, so add one"
            )
        self._model = model
        self._plain = model.tokenizer
        self._directory = model.files[0].parent if model.files else None

    @cached_property
    def _library(self) -> Any:
        """The library's tokenizer; None where the checkpoint does not describe one."""
        directory = self._directory
        if directory is None or not (directory / "tokenizer_config.json").is_file():
            return None
        # Seconds to import: only where it is needed.
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # the library's errors differ by what is damaged
            raise UsageError(
                f"{directory}: its tokenizer cannot be loaded ({' '.join(str(error).split())}); "
                "correct tokenizer_config.json"
            ) from None

    def check(self) -> None:
        """Raise UsageError where the tokenizer that the checkpoint describes cannot be loaded."""
        _ = self._library

    @cached_property
    def name(self) -> str:
        """What lm-eval tells tokenizers apart by."""
        return str(self._directory or self._model.name).replace("/", "__")

    @cached_property
    def eos_id(self) -> int | None:
        """The end-of-text token."""
        if self._library is not None:
            return _optional(self._library.eos_token_id)
        return min(self._model.stop_ids, default=None)

    @cached_property
    def bos_id(self) -> int | None:
        """The beginning-of-text token."""
        if self._library is not None:
            return _optional(self._library.bos_token_id)
        return _configured_bos(self._directory)

    @property
    def prefix_id(self) -> int:
        """What a text without a context follows: BOS, else EOS. UsageError without either."""
        found = self.bos_id if self.bos_id is not None else self.eos_id
        if found is None:
            raise UsageError(
                f"model {self._model.name!r}: has no BOS or EOS token, so a text without a context "
                "cannot be scored; add bos_token_id to generation_config.json"
            )
        return found

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids. By default with the tokenizer's special tokens, unless BOS stands there."""
        add = add_special_tokens
        if add is None:
            add = not has_bos_prefix(text, self._beginning)
        if self._library is not None:
            return list(self._library.encode(text, add_special_tokens=add))
        return list(self._plain.encode(text, add_special_tokens=add).ids)

    @cached_property
    def _beginning(self) -> str | None:
        """The text of the token that is not added twice."""
        known = self.bos_id if self.bos_id is not None else self.eos_id
        return None if known is None else self.decode([known], special=True)

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """Text of token ids, with special tokens or without."""
        tokenizer = self._library if self._library is not None else self._plain
        return str(tokenizer.decode(list(ids), skip_special_tokens=not special))

    def special_id(self, text: str) -> int | None:
        """The special token that is written so; None for ordinary text."""
        found = self._plain.token_to_id(text)
        known = self._plain.get_added_tokens_decoder()
        return found if found in known and known[found].special else None

    @property
    def has_template(self) -> bool:
        """Whether the checkpoint says how a conversation is written."""
        return bool(getattr(self._library, "chat_template", None))

    def renderer(self, choice: bool | str) -> Callable[..., str] | None:
        """What ``load_suite`` renders conversations with, for an ``evaluation.chat_template``.

        UsageError where a template is asked for and there is none.
        """
        if choice is False:
            return None
        self._need_template()
        named = self._library.chat_template
        known = sorted(named) if isinstance(named, dict) else []
        if isinstance(choice, str) and choice not in known:
            raise UsageError(
                f"evaluation.chat_template {choice!r}: no template of {self._model.name!r}; "
                + (f"known: {', '.join(known)}" if known else "it has one without a name: use true")
            )
        return functools.partial(self.chat, template=choice if isinstance(choice, str) else None)

    def _need_template(self) -> None:
        if not self.has_template:
            raise UsageError(
                f"evaluation.chat_template: model {self._model.name!r} has no chat template; "
                "leave it out"
            )

    def chat(
        self, turns: Turns, add_generation_prompt: bool = True, template: str | None = None
    ) -> str:
        """A conversation as text; ``template`` picks one of several by name.

        Without ``add_generation_prompt`` the last turn is left open. UsageError where the
        template fails, also without a system turn.
        """
        self._need_template()
        try:
            return self._rendered(turns, add_generation_prompt, template)
        except Exception as error:  # a template raises what it likes
            return self._without_system(turns, add_generation_prompt, template, error)

    def _without_system(
        self, turns: Turns, open_: bool, template: str | None, error: Exception
    ) -> str:
        """As lm-eval does: models without a system role get the conversation without it."""
        rest = [turn for turn in turns if turn["role"] != "system"]
        try:
            if len(rest) < len(turns):
                return self._rendered(rest, open_, template)
        except Exception as again:
            error = again
        raise UsageError(
            f"{self._directory}: its chat template fails ({' '.join(str(error).split())}); "
            "leave evaluation.chat_template out"
        ) from None

    def _rendered(self, turns: Turns, add_generation_prompt: bool, template: str | None) -> str:
        return str(
            self._library.apply_chat_template(
                list(turns),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **({} if template is None else {"chat_template": template}),
            )
        )


def _configured_bos(directory: Path | None) -> int | None:
    if directory is None:
        return None
    found = (read_json(directory / "generation_config.json") or {}).get("bos_token_id")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _optional(token: Any) -> int | None:
    return None if token is None else int(token)
