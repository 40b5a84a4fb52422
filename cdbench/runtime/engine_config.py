"""How an engine runs, and what is refused before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.models.compiled import check_compile
from cdbench.runtime.attention.backends import choose_backend


@dataclass(frozen=True)
class EngineConfig:
    """How an engine runs. Widths are rows, prefill is tokens, the budget is bytes.

    ``width`` defaults to ``max_residents``; ``min_free_residents`` to width / 8, at least 1;
    ``max_loops`` to the mode's or the model's. Without ``kv_budget_bytes`` the pool grows as
    needed; with one, ``kv_host_bytes`` limits what may be moved to host memory under pressure
    (None: no limit). ``prefix_cache`` reuses the KV of equal prompt prefixes. ``coda_min_rows``
    ``auto`` is 1 until ``use_curves``. ``max_itl_s`` bounds what prompts may add to the gap between
    tokens, ``ride`` lets their chunks share core launches. ``first_token`` is full or select,
    ``state_init`` zero or random. ``attention`` is auto, sdpa or triton
    (``attention/backends.py``); ``compile`` runs the stages through torch.compile, ``graphs``
    captures decode launches (``graphs.py``).
    """

    mode: str = "cdb"
    max_residents: int = 64
    width: int | None = None
    kv_layout: str = "per-loop"
    kv_budget_bytes: int | None = None
    kv_host_bytes: int | None = None
    prefix_cache: bool = False
    max_loops: int | None = None
    prefill_tokens: int = 2048
    coda_min_rows: int | Literal["auto"] = 1
    min_free_residents: int | None = None
    max_itl_s: float | None = None
    ride: bool = False
    first_token: str = "full"
    state_init: str = "zero"
    attention: str = "auto"
    compile: bool = False
    graphs: bool = False


def check_model(config: EngineConfig, model: StagedModel) -> None:
    """Raise UsageError where a model cannot do what the configuration asks of it."""
    choose_backend(config.attention, model.device)
    if config.compile:
        check_compile(model.device)
    if config.state_init != "random":
        return
    if not model.dims.has_random_state:
        raise UsageError(
            f"state_init 'random': a {model.dims.model_type} model starts from its prelude; "
            "use zero"
        )
    if config.prefix_cache:
        raise UsageError(
            "kv.prefix_cache: with state_init random no two prompts have the same keys; use false"
        )


def check_config(config: EngineConfig) -> None:
    """Raise UsageError where a size or a choice of a configuration cannot be."""
    sizes = {
        "max_residents": config.max_residents,
        "width": config.width,
        "prefill_tokens": config.prefill_tokens,
        "coda_min_rows": 1 if config.coda_min_rows == "auto" else config.coda_min_rows,
        "min_free_residents": config.min_free_residents,
        "max_loops": config.max_loops,
        "kv.budget_bytes": config.kv_budget_bytes,
        "kv.host_bytes": config.kv_host_bytes,
    }
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; use at least 1")
    for name, choice, known in (
        ("first_token", config.first_token, ("full", "select")),
        ("state_init", config.state_init, ("zero", "random")),
    ):
        if choice not in known:
            raise UsageError(f"{name} {choice!r}: unknown; use {' or '.join(known)}")
