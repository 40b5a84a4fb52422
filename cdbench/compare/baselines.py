"""Baselines: runs that others are held against, in ``results/baselines/`` by default.

``NAME.json`` has what repeats to the digit on any machine; ``NAME.<fingerprint>.json`` the blocks
of one machine, for metrics that are times. Both are small and meant to be committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdbench.compare.counted import COUNTED
from cdbench.compare.fingerprint import fingerprint
from cdbench.compare.gate import Bases, counts_of, spoiled
from cdbench.compare.gate_file import GateFile
from cdbench.compare.sides import Side, read_side
from cdbench.errors import InvalidRunError, UsageError
from cdbench.metrics.registry import METRICS
from cdbench.schema import Result
from cdbench.schema.files import read_document, write_document
from cdbench.schema.gating import BaselineMode, ExactBaseline
from cdbench.stats.blocks import MIN_BLOCKS

DIRECTORY = "results/baselines"
MISSING = "no such baseline; make it with `cdbench baseline promote RUN --name NAME`"


def inexact(result: Result) -> Iterator[str]:
    """Why a run's counts are no figures for the digit; empty where they are."""
    config, engine = result.config, result.config.get("engine")
    if not {"tokens", "depths"} <= set(result.workload.replayed) and not result.workload.synthetic:
        yield "its tokens and depths are its own; replay a recording (exit: trace:FILE)"
    exit_rule = config.get("exit")
    if isinstance(exit_rule, dict) and exit_rule.get("rule") != "trace":
        yield "exit.rule is not trace: another machine would record other depths"
    if result.workload.arrivals != "all-at-once":
        yield f"arrivals are {result.workload.arrivals}; use all-at-once"
    if isinstance(engine, dict):
        if engine.get("max_itl_s") is not None:
            yield "engine.max_itl_s is set: launches depend on the clock"
        if engine.get("coda_min_rows") == "auto":
            yield "engine.coda_min_rows is auto: it depends on measured times"
    if not result.blocks:
        yield "nothing was timed"


def exact_figures(side: Side) -> dict[str, dict[str, float]]:
    """Mode → the counts that did not vary between its timed runs."""
    return {
        label: {
            name: values[0]
            for name, values in metrics.items()
            if name in COUNTED and len(set(counts_of(side, label, name))) == 1
        }
        for label, metrics in side.block_values.items()
    }


def exact_baseline(side: Side, name: str, promoted_utc: str) -> ExactBaseline:
    """What of a run repeats to the digit.

    Raises:
        UsageError: something in the run does not.
        InvalidRunError: the run is INVALID for more than its times.
    """
    if (invalid := spoiled(side, times=False)) is not None:
        raise InvalidRunError(f"{invalid}: no count of it is right; run it again")
    for why in inexact(side.result):
        raise UsageError(f"{side.name}: no exact baseline: {why}")
    manifest = side.result.manifest
    figures = exact_figures(side)
    return ExactBaseline(
        name=name,
        promoted_utc=promoted_utc,
        run=side.directory.resolve().name,
        cdbench_version=manifest.cdbench_version,
        commit=manifest.git.commit if manifest.git is not None else None,
        workload=side.result.workload.hash,
        model_files={model.name: model.files for model in manifest.models},
        modes={
            label: BaselineMode(
                max_loops=mode.max_loops,
                width=mode.width,
                max_residents=mode.max_residents,
                exact=dict(figures.get(label, {})),
            )
            for label, mode in side.result.modes.items()
            if label in figures
        },
    )


def check_timed(side: Side) -> None:
    """Raise UsageError where a run's times are nothing to hold others against."""
    result = side.result
    if result.validity.verdict == "INVALID":
        raise UsageError(
            f"{side.name}: INVALID ({result.validity.reasons[0]}); promote a VALID run"
        )
    blocks = len({run.index for run in result.blocks})
    if blocks < MIN_BLOCKS:
        raise UsageError(f"{side.name}: {blocks} blocks; a baseline needs {MIN_BLOCKS}")


def timed_baseline(result: Result) -> Result:
    """The run without what no comparison of times reads, so that it is small enough to commit."""
    return result.model_copy(
        update={
            "accuracy": None,
            "exits": None,
            "scores": None,
            "samples": {},
            "files": {},
            "waterfall": None,
            "stages": None,
            "environment": None,
            "config": {key: value for key, value in result.config.items() if key != "out"},
            "bounds": {},
            "modes": {
                label: mode.model_copy(
                    update={"depth_histogram_by_task": {}, "mean_depth_by_position": []}
                )
                for label, mode in result.modes.items()
            },
        }
    )


def exact_path(directory: Path, name: str) -> Path:
    """Where the exact baseline of that name lies."""
    return directory / f"{name}.json"


def timed_path(directory: Path, name: str, result: Result) -> Path:
    """Where the timed baseline of that name for the machine of ``result`` lies."""
    return directory / f"{name}.{fingerprint(result.manifest)}.json"


def read_exact(directory: Path, name: str) -> ExactBaseline | None:
    """The exact baseline; None where there is none. UsageError where it cannot be read."""
    path = exact_path(directory, name)
    if not path.is_file():
        return None
    found = read_document(ExactBaseline, path)
    unknown = {m for mode in found.modes.values() for m in mode.exact} - set(METRICS)
    if unknown:
        raise UsageError(f"{path}: unknown metric {sorted(unknown)[0]!r}; promote a run again")
    return found


def read_timed(directory: Path, name: str, run: Side) -> Side | None:
    """The timed baseline of the machine that ``run`` ran on; None where there is none."""
    path = timed_path(directory, name, run.result)
    return read_side(str(path), "baseline", recheck=False) if path.is_file() else None


def write_exact(directory: Path, baseline: ExactBaseline) -> Path:
    """Write or replace the exact baseline, whole or not at all."""
    path = exact_path(directory, baseline.name)
    write_document(path, baseline)
    return path


def write_timed(directory: Path, name: str, result: Result) -> Path:
    """Write or replace the timed baseline of the machine of ``result``."""
    path = timed_path(directory, name, result)
    write_document(path, timed_baseline(result))
    return path


def find_bases(
    gate: GateFile, run: Side, base: Side | None, directory: Path | None, *, require: bool
) -> Bases:
    """What a gate holds a run against: ``base`` where it is given, else the baselines there are.

    Raises:
        UsageError: one that the gate needs is missing under ``require``, or cannot be read.
    """
    place = Path(DIRECTORY) if directory is None else directory
    files: list[tuple[str, str]] = []
    missing: list[str] = []
    exact = _exact_of(gate, base, place, files, missing)
    timed = base
    if base is None and gate.timed.metrics:
        path = timed_path(place, gate.name, run.result)
        timed = read_timed(place, gate.name, run)
        if timed is None:
            missing.append(str(path))
        else:
            files.append(("timed", str(path)))
    if missing and require:
        raise UsageError(f"{missing[0]}: {MISSING}")
    notes = tuple(f"no baseline {path}: its checks were left out" for path in missing)
    return Bases(exact, timed, tuple(files), notes)


def _exact_of(
    gate: GateFile,
    base: Side | None,
    place: Path,
    files: list[tuple[str, str]],
    missing: list[str],
) -> ExactBaseline | None:
    """The counts of the base, or of the exact baseline; None where the gate asks for none."""
    if not gate.exact:
        return None
    if base is not None:
        return exact_baseline(base, gate.name, base.result.manifest.started_utc)
    path = exact_path(place, gate.name)
    found = read_exact(place, gate.name)
    if found is None:
        missing.append(str(path))
    else:
        files.append(("exact", str(path)))
    return found
