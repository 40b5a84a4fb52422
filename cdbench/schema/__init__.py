"""The result contract: every file cdbench writes, field by field. Version 1.

- ``result.json`` is one ``Result``. It is written last, whole.
- ``requests.jsonl`` has one ``RequestRecord`` per request and timed run, ``repeats.jsonl`` one
  ``RepeatRecord`` per timed run (one ``LivePassRecord`` per live pass), ``workload.jsonl`` one
  ``WorkloadRecord`` per request of the workload, ``launches.npz`` every launch
  (``schema/launches.py``), ``stages.jsonl`` one ``StagePassRecord`` per pass over the stages,
  ``samples_<task>.jsonl`` one ``SampleRecord`` per mode and question: the source of every summary.
- ``cdbench generate --json`` prints one ``GenerateDocument``.

Rules. An absent or undefined value is null, never 0; NaN and infinity are never written (an
undefined measure becomes null, a required one is refused). Times are seconds, sizes bytes, shares
and accuracies fractions, depths 1-based loops; names carry the unit where it could be mistaken.
``schema_version`` rises when a field changes its meaning or goes; new optional fields and sections
do not raise it, so readers keep what they do not know.
"""

from __future__ import annotations

from cdbench.schema.accuracy import (
    Accuracy,
    AgreementRecord,
    ModeAccuracy,
    PairedRecord,
    ScoreRecord,
    Scores,
    TaskAccuracy,
)
from cdbench.schema.base import (
    SCHEMA_VERSION,
    IntervalRecord,
    Measure,
    Record,
    Scope,
    Work,
)
from cdbench.schema.cost import (
    BreakEvenRecord,
)
from cdbench.schema.environment import (
    CpuEnvironment,
    Environment,
    GpuEnvironment,
    RepeatEnvironment,
)
from cdbench.schema.files import (
    LAUNCHES_FILE,
    REPEATS_FILE,
    REQUESTS_FILE,
    RESULT_FILE,
    STAGE_PASSES_FILE,
    TRACE_FILE,
    WORKLOAD_FILE,
    append_lines,
    read_repeats,
    read_requests,
    read_result,
    read_samples,
    read_stage_passes,
    read_workload,
    samples_file,
    to_json,
    write_requests,
    write_result,
)
from cdbench.schema.generation import (
    GenerateDocument,
    GeneratedRequest,
)
from cdbench.schema.looks import (
    LooksRecord,
)
from cdbench.schema.machine import (
    CpuInfo,
    DeviceInfo,
    GitState,
    Manifest,
    ModelIdentity,
    RepeatedRun,
)
from cdbench.schema.memory import (
    EqualMemory,
    ModeMemory,
)
from cdbench.schema.repeats import (
    LivePassRecord,
    RepeatRecord,
)
from cdbench.schema.requests import (
    RequestRecord,
)
from cdbench.schema.result import (
    BlockRecord,
    BoundRecord,
    Comparison,
    ExitSettings,
    ModelFacts,
    ModeResult,
    Result,
    Validity,
    Workload,
)
from cdbench.schema.samples import AnswerRecord, PieceRecord, SampleRecord
from cdbench.schema.stages import StagePassPoint, StagePassRecord
from cdbench.schema.waterfall import Waterfall, WaterfallRow
from cdbench.schema.workload import (
    WorkloadRecord,
)

__all__ = [
    "LAUNCHES_FILE",
    "REPEATS_FILE",
    "REQUESTS_FILE",
    "RESULT_FILE",
    "SCHEMA_VERSION",
    "STAGE_PASSES_FILE",
    "TRACE_FILE",
    "WORKLOAD_FILE",
    "Accuracy",
    "AgreementRecord",
    "AnswerRecord",
    "BlockRecord",
    "BoundRecord",
    "BreakEvenRecord",
    "Comparison",
    "CpuEnvironment",
    "CpuInfo",
    "DeviceInfo",
    "Environment",
    "EqualMemory",
    "ExitSettings",
    "GenerateDocument",
    "GeneratedRequest",
    "GitState",
    "GpuEnvironment",
    "IntervalRecord",
    "LivePassRecord",
    "LooksRecord",
    "Manifest",
    "Measure",
    "ModeAccuracy",
    "ModeMemory",
    "ModeResult",
    "ModelFacts",
    "ModelIdentity",
    "PairedRecord",
    "PieceRecord",
    "Record",
    "RepeatEnvironment",
    "RepeatRecord",
    "RepeatedRun",
    "RequestRecord",
    "Result",
    "SampleRecord",
    "Scope",
    "ScoreRecord",
    "Scores",
    "StagePassPoint",
    "StagePassRecord",
    "TaskAccuracy",
    "Validity",
    "Waterfall",
    "WaterfallRow",
    "Work",
    "Workload",
    "WorkloadRecord",
    "append_lines",
    "read_repeats",
    "read_requests",
    "read_result",
    "read_samples",
    "read_stage_passes",
    "read_workload",
    "samples_file",
    "to_json",
    "write_requests",
    "write_result",
]
