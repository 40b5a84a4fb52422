"""The result contract: every file cdbench writes, field by field. Version 1.

- ``result.json`` is one ``Result``. It is written last, whole.
- ``requests.jsonl`` has one ``RequestRecord`` per request and timed run: the source of every
  summary.
- ``cdbench generate --json`` prints one ``GenerateDocument``.

Rules. An absent or undefined value is null, never 0; NaN and infinity are never written (an
undefined measure becomes null, a required one is refused). Times are seconds, sizes bytes, shares
and accuracies fractions, depths 1-based loops; names carry the unit where it could be mistaken.
``schema_version`` rises when a field changes its meaning or goes; new optional fields and sections
do not raise it, so readers keep what they do not know.
"""

from __future__ import annotations

from cdbench.schema.base import (
    SCHEMA_VERSION,
    IntervalRecord,
    Measure,
    Record,
    Scope,
    Work,
)
from cdbench.schema.files import (
    REQUESTS_FILE,
    RESULT_FILE,
    read_requests,
    read_result,
    to_json,
    write_requests,
    write_result,
)
from cdbench.schema.generation import (
    GenerateDocument,
    GeneratedRequest,
)
from cdbench.schema.machine import (
    CpuInfo,
    DeviceInfo,
    GitState,
    Manifest,
    ModelIdentity,
)
from cdbench.schema.requests import (
    RequestRecord,
)
from cdbench.schema.result import (
    Accuracy,
    BlockRecord,
    BoundRecord,
    Comparison,
    ExitSettings,
    ModeAccuracy,
    ModelFacts,
    ModeResult,
    PairedRecord,
    Result,
    Validity,
    Workload,
)

__all__ = [
    "REQUESTS_FILE",
    "RESULT_FILE",
    "SCHEMA_VERSION",
    "Accuracy",
    "BlockRecord",
    "BoundRecord",
    "Comparison",
    "CpuInfo",
    "DeviceInfo",
    "ExitSettings",
    "GenerateDocument",
    "GeneratedRequest",
    "GitState",
    "IntervalRecord",
    "Manifest",
    "Measure",
    "ModeAccuracy",
    "ModeResult",
    "ModelFacts",
    "ModelIdentity",
    "PairedRecord",
    "Record",
    "RequestRecord",
    "Result",
    "Scope",
    "Validity",
    "Work",
    "Workload",
    "read_requests",
    "read_result",
    "to_json",
    "write_requests",
    "write_result",
]
