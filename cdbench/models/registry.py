"""Which class builds which ``model_type``. A new model is one file and one line here."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.llama import Llama
from cdbench.models.ouro import Ouro

FAMILIES: dict[str, Callable[[dict[str, Any]], StagedModel]] = {"ouro": Ouro, "llama": Llama}


def build_model(config: dict[str, Any]) -> StagedModel:
    """An uninitialised model for an official configuration; UsageError for an unknown type."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        near = difflib.get_close_matches(str(model_type), FAMILIES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(FAMILIES))}"
        raise UsageError(f"config.json: model_type {model_type!r} is not supported; {hint}")
    return FAMILIES[model_type](config)
