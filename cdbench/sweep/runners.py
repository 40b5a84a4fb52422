"""How one cell is run: in this process, through what the command of that name calls."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path

from cdbench.config import RunConfig, check_exit
from cdbench.schema.files import write_document
from cdbench.schema.stages import STAGES_FILE
from cdbench.sweep.cells import Check
from cdbench.sweep.execute import RunCell
from cdbench.sweep.file import Verb


def runner(verb: Verb) -> RunCell:
    """The function that runs a cell of this kind."""
    return {"run": _run, "stages": _stages}[verb]


def checker() -> Check:
    """What can be checked of a cell without its model: that its rule exists, and its threshold."""
    from cdbench.runtime.exits import RULES

    def check(config: RunConfig) -> None:
        if config.exit.rule is not None:
            check_exit(config.exit.rule, config.exit.threshold, RULES)

    return check


def _run(config: RunConfig, directory: Path) -> bool:
    from cdbench.bench.benchmark import run_benchmark
    from cdbench.cli.progress import Silent

    try:
        result, _ = run_benchmark(config, nullcontext(Silent()))
    finally:
        gc.collect()  # a model in a cycle would still be there when the next one loads
    return result.status == "complete"


def _stages(config: RunConfig, directory: Path) -> bool:
    from cdbench.cli.progress import Silent
    from cdbench.stages.measure import Asked, measure_stages

    directory.mkdir(parents=True, exist_ok=True)
    write_document(directory / STAGES_FILE, measure_stages(config, Asked(), Silent()))
    return True
