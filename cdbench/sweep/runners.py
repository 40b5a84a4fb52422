"""How one cell is run: in this process, through what the command of that name calls."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from cdbench.config import RunConfig, check_exit
from cdbench.errors import UsageError
from cdbench.schema.files import write_document
from cdbench.schema.stages import STAGES_FILE
from cdbench.sweep.cells import Cell, Check
from cdbench.sweep.execute import RunCell
from cdbench.sweep.file import Verb


def runner(verb: Verb) -> RunCell:
    """The function that runs a cell of this kind."""
    return {"run": _run, "stages": _stages}[verb]


def checker() -> Check:
    """What can be checked of cells without their models: that a rule exists, and its threshold."""
    from cdbench.runtime.exits import RULES

    def refused(cells: Sequence[Cell]) -> dict[int, str]:
        found = {}
        for cell in cells:
            asked = cell.config.exit
            try:
                if asked.rule is not None:
                    check_exit(asked.rule, asked.threshold, RULES)
            except UsageError as error:
                found[cell.number] = str(error)
        return found

    return refused


def let_go() -> None:
    """Give back what a model took: one in a cycle would still be there when the next one loads.

    A budget that is a share of the free memory would count memory kept for reuse as taken.
    """
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _run(config: RunConfig, directory: Path) -> bool:
    from cdbench.bench.benchmark import run_benchmark
    from cdbench.cli.progress import Silent

    try:
        result, _ = run_benchmark(config, nullcontext(Silent()))
    finally:
        let_go()
    return result.status == "complete"


def _stages(config: RunConfig, directory: Path) -> bool:
    from cdbench.cli.progress import Silent
    from cdbench.stages.measure import Asked, measure_stages

    directory.mkdir(parents=True, exist_ok=True)
    try:
        write_document(directory / STAGES_FILE, measure_stages(config, Asked(), Silent()))
    finally:
        let_go()
    return True
