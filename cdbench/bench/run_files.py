"""Which files a run, a recording, a profile or a sweep writes: no other command replaces one."""

from __future__ import annotations

import re
from pathlib import Path

from cdbench.schema import files
from cdbench.schema.lookahead import GATE_FILE, GATE_WEIGHTS_FILE
from cdbench.schema.profile import PROFILE_FILE
from cdbench.schema.recording import RECORD_FILE, SIGNALS_FILE
from cdbench.schema.stages import STAGES_FILE
from cdbench.schema.sweep import ATTEMPT_FILE, FAILED_FILE, SWEEP_FILE

RUN_FILES = frozenset(
    {
        *(files.RESULT_FILE, files.REQUESTS_FILE, files.REPEATS_FILE, files.WORKLOAD_FILE),
        *(files.LAUNCHES_FILE, files.STAGE_PASSES_FILE, files.TRACE_FILE),
        *(RECORD_FILE, SIGNALS_FILE, GATE_FILE, GATE_WEIGHTS_FILE),
        *(PROFILE_FILE, STAGES_FILE, SWEEP_FILE, ATTEMPT_FILE, FAILED_FILE),
    }
)
_SAMPLES = re.compile(r"samples_.*\.jsonl")


def is_run_file(path: Path) -> bool:
    """Whether the name is one that a run's file has, be it there or not."""
    return path.name in RUN_FILES or _SAMPLES.fullmatch(path.name) is not None
