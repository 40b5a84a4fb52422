"""One run from its configuration to its run directory: the library behind ``cdbench run``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path

from cdbench.bench.budget import check_budget
from cdbench.bench.directory import RunDirectory
from cdbench.bench.judging import watched_files
from cdbench.bench.live import follow
from cdbench.bench.measurements import Progress
from cdbench.bench.once import WORK, Once, anew, work_key
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.session import Session
from cdbench.bench.summary import start_manifest, summarise
from cdbench.bench.timed_part import check_stages
from cdbench.bench.workload import TimedWork, prepare
from cdbench.config import RunConfig
from cdbench.errors import OutputError, UsageError
from cdbench.evals.ranks import join_ranks
from cdbench.render.perfetto import of_blocks, write_trace
from cdbench.schema import TRACE_FILE, Manifest, Result
from cdbench.stats.blocks import MIN_BLOCKS
from cdbench.workloads.arrivals import parse_arrivals

Announce = Callable[[Plan, TimedWork | None, Manifest], None]
"""Told of a run that has been found sound and is about to be measured."""


def check_interval(config: RunConfig) -> None:
    """Raise UsageError where a run waits for an interval that it will not have.

    The interval of ``repeats.interval`` is that of ``cdb`` over ``static``; the first one is looked
    at after ``repeats.blocks``.
    """
    if config.repeats.interval is None:
        return
    if config.repeats.blocks < MIN_BLOCKS:
        raise UsageError(
            f"repeats.blocks: {config.repeats.blocks} beside repeats.interval, which is first "
            f"looked at after so many, but needs {MIN_BLOCKS}; raise it, or drop the interval"
        )
    ran = {str(mode) for mode in config.resolved_modes}
    paced = parse_arrivals(config.workload.arrivals).wall_ratios_allowed
    if "equal" not in config.work or not {"cdb", "static"} <= ran or not paced:
        raise UsageError(
            "repeats.interval: waits for the speed-up of cdb over static, which this run does not "
            "measure; drop it, or run both on equal work, all at once or in a closed loop"
        )


def sound(config: RunConfig, once: Once = anew) -> tuple[Plan, TimedWork | None]:
    """The plan of a run and the work it times, all of it found sound.

    ``once`` may keep what is loaded for the next run to be checked. Raises UsageError for whatever
    can be known to be wrong before anything is measured.
    """
    plan = make_plan(config, once)
    work = once((WORK, work_key(config)), lambda: prepare(plan))
    check_stages(plan)
    check_interval(config)
    check_budget(plan, work)
    return plan, work


def follow_benchmark(config: RunConfig) -> None:
    """Answer questions for the first of several processes, which runs the benchmark itself."""
    if "live" in config.work:
        follow(_joined(make_plan(config)))


def _joined(plan: Plan) -> Plan:
    """The plan as one of the processes that torchrun started, where there are questions."""
    if "live" not in plan.config.work:
        return plan
    return replace(plan, ranks=join_ranks(plan.model.network.device))


def run_benchmark(
    config: RunConfig,
    progress: AbstractContextManager[Progress],
    announce: Announce | None = None,
    complete: Callable[[Result], Result] | None = None,
    launches: bool = False,
    once: Once = anew,
) -> tuple[Result, Path]:
    """Measure what a configuration asks for; the result, and the directory that holds it.

    ``complete`` may add to the result before it is written; ``launches`` asks for a trace viewer's
    file of the first block beside it; ``once`` may keep what is loaded for the next run. Raises
    UsageError, before anything has run, for whatever is wrong; a directory made for nothing is
    removed again. Whatever ends a run later leaves the result of what was measured until then,
    INVALID with the error as its reason.
    """
    directory = RunDirectory.create(config.out, config.model)
    try:
        plan, work = sound(config, once)
        plan = _joined(plan)
        started = start_manifest(plan)
        watched = watched_files(plan, started)
        if announce is not None:
            announce(plan, work, started)
        with progress as told:
            session = Session(plan, work, directory, told)
            try:
                measured = session.measure()
            except Exception:
                if session.measured.live or session.measured.timed:
                    with suppress(OutputError):  # a full disk: the first error says so
                        directory.finish(summarise(plan, work, session.measured, started, watched))
                raise
        result = summarise(plan, work, measured, started, watched)
        if complete is not None:
            result = complete(result)
        if launches and measured.timed:
            write_trace(directory.path / TRACE_FILE, of_blocks(measured.timed))
            result = result.model_copy(update={"files": {**result.files, "trace": TRACE_FILE}})
        directory.finish(result)
        return result, directory.path
    except OutputError as error:
        raise directory.with_what_is_kept(error) from None
    finally:
        directory.close()
