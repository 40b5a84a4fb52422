"""What is shipped of a trained model: its checkpoint in bf16, tokenizer, stop ids and card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import WEIGHTS_NAME, save_checkpoint

CARD_NAME = "card.json"


def write_assets(
    model: StagedModel,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    out: Path,
    card: dict[str, Any],
) -> None:
    """The checkpoint in its official format, with tokenizer, generation configuration and card."""
    save_checkpoint(model, config, out, torch.bfloat16)
    (out / WEIGHTS_NAME).chmod(0o644)  # it is written for its owner alone
    tokenizer.save(str(out / "tokenizer.json"))
    generation = {key: config[key] for key in ("eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    write_card(out, card)


def write_card(out: Path, card: dict[str, Any]) -> None:
    """What the runtime and a reader need to know of the checkpoint beside its configuration."""
    (out / CARD_NAME).write_text(json.dumps(card, indent=1) + "\n")


def read_card_file(directory: Path) -> dict[str, Any]:
    """The card as it is written."""
    card: dict[str, Any] = json.loads((directory / CARD_NAME).read_text())
    return card


def round_to_bfloat16(model: StagedModel) -> None:
    """Go on with what is shipped: the weights as they will be read back."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
