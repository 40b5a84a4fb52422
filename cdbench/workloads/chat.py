"""Turns of a conversation as one text: by the model's own chat template, else plainly.

A template lies in a checkpoint's ``tokenizer_config.json`` or ``chat_template.jinja``. What it
writes has its special tokens already, so none may be added when it is encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdbench.errors import UsageError
from cdbench.models.config_reader import read_json
from cdbench.models.loading import LoadedModel
from cdbench.workloads.shapes import Message

LABELS = {"system": "System", "user": "User", "assistant": "Assistant"}


class ChatRenderer:
    """Writes conversations for one model. ``templated`` says that its own template is used."""

    def __init__(self, model: LoadedModel) -> None:
        self._directory = model.files[0].parent if model.files else None
        self.templated = self._directory is not None and has_template(self._directory)
        self._tokenizer = _templating(self._directory) if self.templated else None

    def __call__(self, messages: Sequence[Message]) -> str:
        """The text after which the model's answer begins. UsageError where a template fails."""
        if self._tokenizer is None:
            return plain(messages)
        turns = [{"role": m.role, "content": m.content} for m in messages]
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    turns, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template raises what it likes
            raise UsageError(
                f"{self._directory}: its chat template fails on the workload "
                f"({' '.join(str(error).split())}); write a workload.template instead"
            ) from None


def plain(messages: Sequence[Message]) -> str:
    """A single turn as it is; several with a label each, ending where the answer begins."""
    if len(messages) == 1:
        return messages[0].content
    lines = [f"{LABELS[message.role]}: {message.content}" for message in messages]
    return "\n".join([*lines, f"{LABELS['assistant']}:"])


def has_template(directory: Path) -> bool:
    """Whether a checkpoint's directory has a chat template."""
    if (directory / "chat_template.jinja").is_file():
        return True
    return bool((read_json(directory / "tokenizer_config.json") or {}).get("chat_template"))


def _templating(directory: Path | None) -> Any:
    """The library's tokenizer, which knows how to fill in a template."""
    # Seconds to import: only where there is a template.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(str(directory), local_files_only=True)
    except Exception as error:  # the library's errors differ by what is damaged
        raise UsageError(
            f"{directory}: its chat template cannot be loaded ({' '.join(str(error).split())}); "
            "write a workload.template instead"
        ) from None
