"""The keys of a run configuration: default, meaning and unit of each, and what may not go together.

Checks raise UsageError themselves, so that a message can say what to do; what pydantic finds comes
as its ValidationError, which ``cdbench.config`` turns into the same kind of line.
"""

from __future__ import annotations

from cdbench.keys.depth import RULE_KEYS, ExitConfig, KvConfig, expand_exit
from cdbench.keys.describe import KeyInfo, describe_keys, known_keys, nearest_key, sections
from cdbench.keys.run import RunConfig
from cdbench.keys.serving import EngineConfig, RepeatsConfig, SamplingConfig, SloConfig
from cdbench.keys.workload import WorkloadConfig

__all__ = [
    "RULE_KEYS",
    "EngineConfig",
    "ExitConfig",
    "KeyInfo",
    "KvConfig",
    "RepeatsConfig",
    "RunConfig",
    "SamplingConfig",
    "SloConfig",
    "WorkloadConfig",
    "describe_keys",
    "expand_exit",
    "known_keys",
    "nearest_key",
    "sections",
]
