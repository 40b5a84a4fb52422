"""cdbench: how much faster is continuous depth batching, against what, and at what accuracy?

from cdbench import Engine, EngineConfig, ExitPolicy, Request, load_model
model = load_model("demo-ouro")
engine = Engine(model.network, EngineConfig(mode="cdb"), detokenize=model.decode)
for result in engine.run([Request("q", model.encode("copy : a b c"), exit=ExitPolicy("cdf", 0.5))]):
    print(result.text, result.executed_depths)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdbench.models.loading import LoadedModel, load_model
    from cdbench.runtime.core import ExitPolicy, Request, RequestResult, SamplingParams
    from cdbench.runtime.engine import Engine
    from cdbench.runtime.engine_config import EngineConfig

__version__ = "0.1.0"

_HOMES = {
    "Engine": "cdbench.runtime.engine",
    "EngineConfig": "cdbench.runtime.engine_config",
    "ExitPolicy": "cdbench.runtime.core",
    "LoadedModel": "cdbench.models.loading",
    "Request": "cdbench.runtime.core",
    "RequestResult": "cdbench.runtime.core",
    "SamplingParams": "cdbench.runtime.core",
    "load_model": "cdbench.models.loading",
}

__all__ = [
    "Engine",
    "EngineConfig",
    "ExitPolicy",
    "LoadedModel",
    "Request",
    "RequestResult",
    "SamplingParams",
    "load_model",
]


def __getattr__(name: str) -> Any:
    # Lazily, so that `cdbench --help` does not wait for torch.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cdbench' has no attribute {name!r}")
