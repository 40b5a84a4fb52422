"""A run's configuration with the exit keys that nobody set as they ran.

A key that is not set takes the model card's value, so that "none" would say the wrong thing: it is
an exit rule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdbench.schema import Result

ADAPTIVE = ("cdb", "lockstep")
CARDS = "the card's"
"""Of an unset rule or threshold, where no adaptive mode tells what it came to."""


def effective_config(config: Mapping[str, Any], result: Result | None) -> dict[str, Any]:
    """``config`` with unset keys of ``exit`` as the adaptive mode of ``result`` ran them."""
    asked = config.get("exit")
    if not isinstance(asked, Mapping):
        return dict(config)
    ran = _as_it_ran(result)
    filled = {key: ran.get(key) if value is None else value for key, value in asked.items()}
    if "rule" in filled and filled["rule"] is None:
        filled["rule"] = CARDS
        if "threshold" in filled and filled["threshold"] is None:
            filled["threshold"] = CARDS
    return {**config, "exit": filled}


def _as_it_ran(result: Result | None) -> dict[str, Any]:
    """The keys of ``exit`` that a result tells; empty where it has no adaptive mode."""
    if result is None:
        return {}
    mode = next((result.modes[label] for label in ADAPTIVE if label in result.modes), None)
    loops = {} if result.model is None else {"max_loops": result.model.max_loops}
    if mode is None:
        return loops
    settings = mode.exit
    return {
        **loops,
        "rule": settings.rule,
        "threshold": settings.threshold,
        "depth": settings.depth,
        "min_loops": settings.min_loops,
        "lag": settings.lag,
    }
