"""Stored runs made up by hand for comparisons: walls, counts, answers; no model, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdbench.compare.sides import Side, block_values
from cdbench.schema import (
    Accuracy,
    AnswerRecord,
    BlockRecord,
    Comparison,
    CpuInfo,
    DeviceInfo,
    ExitSettings,
    IntervalRecord,
    Manifest,
    ModeAccuracy,
    ModelFacts,
    ModeResult,
    PairedRecord,
    PieceRecord,
    Result,
    SampleRecord,
    TaskAccuracy,
    Validity,
    Workload,
    samples_file,
    write_result,
)
from cdbench.schema.files import append_lines
from cdbench.stats.blocks import BlockRun, geometric_mean, log_ratios
from cdbench.stats.blocks import mean as mean_interval
from cdbench.stats.paired import compare_paired

TOKENS = 1000
Walls = Mapping[str, Sequence[float]]
"""Mode → wall of each block, in seconds; both runs of a block take it."""

MANIFEST = Manifest(
    started_utc="2026-01-01T00:00:00+00:00",
    command=["cdbench", "run"],
    cdbench_version="0.1.0",
    git=None,
    source_sha256="a" * 64,
    python="3.11.7",
    packages={"torch": "2.13.0"},
    platform="Linux 6 x86_64",
    cpu=CpuInfo(
        model="A processor", logical_cores=2, physical_cores=2, affinity=[0, 1], governor=None
    ),
    ram_bytes=1 << 34,
    load_average=None,
    torch_threads=2,
    torch_interop_threads=None,
    device=DeviceInfo(kind="cpu"),
    env={},
    models=[],
)
FACTS = ModelFacts(
    name="hand-made",
    model_type="ouro",
    parameters=1,
    max_loops=4,
    cost_ratio=0.1,
    kv_bytes_per_token=1,
    kv_layout="per-loop",
    dtype="float32",
    device="cpu",
)
EVEN = (1.0, 1.01, 0.99, 1.005, 0.995, 1.0)
"""Noise of six blocks, about one per cent."""


def walls(**seconds: float) -> dict[str, list[float]]:
    """Walls of six blocks about so many seconds; ``dense`` and others by their own names."""
    return {mode: [s * factor for factor in EVEN] for mode, s in seconds.items()}


def timed_result(times: Walls, counts: Mapping[str, float] | None = None, **changes: Any) -> Result:
    """A VALID run of ``TOKENS`` output tokens with these walls; ``counts`` never vary."""
    blocks = _blocks(times, counts or {"token_loops": 2500.0})
    values = block_values(blocks)
    fields: dict[str, Any] = {
        "status": "complete",
        "validity": Validity(verdict="VALID"),
        "manifest": MANIFEST,
        "config": {"model": "hand-made", "exit": {"rule": "trace"}, "engine": {"width": 8}},
        "model": FACTS,
        "workload": Workload(
            hash="ab" * 32,
            source="hand-made",
            requests=20,
            prompt_tokens=100,
            output_tokens=TOKENS,
            arrivals="all-at-once",
            replayed=["tokens", "lengths", "depths"],
        ),
        "modes": {mode: _mode(mode, values.get(mode, {})) for mode in times},
        "blocks": blocks,
        "comparisons": _comparisons(blocks),
    }
    return Result(**{**fields, **changes})


def side(result: Result, name: str = "run", directory: Path = Path("nowhere")) -> Side:
    """The result as one side of a comparison."""
    return Side(name, directory, result, rechecked=False)


def written(directory: Path, result: Result) -> Path:
    """A directory that holds this ``result.json`` and no raw records."""
    directory.mkdir(parents=True)
    write_result(directory, result)
    return directory


def answered(
    directory: Path, answers: Mapping[str, Sequence[bool]], depth: int = 2, **changes: Any
) -> Path:
    """A directory of a run in which each mode answered one task so, its samples beside it."""
    directory.mkdir(parents=True)
    samples = [
        sample(mode, number, right, depth)
        for mode, given in answers.items()
        for number, right in enumerate(given)
    ]
    append_lines(directory / samples_file("sums"), samples)
    result = timed_result({}, None, samples={"sums": samples_file("sums")})
    modes = {mode: _mode(mode, {}) for mode in answers}
    write_result(
        directory,
        result.model_copy(update={"modes": modes, "accuracy": _accuracy(answers), **changes}),
    )
    return directory


def sample(mode: str, number: int, right: bool, depth: int = 2) -> SampleRecord:
    """One question of the task ``sums``, its text three tokens long."""
    piece = PieceRecord(
        tokens=[1, 2, int(right)],
        executed_depths=[4, depth, depth],
        requested_depths=[4, depth, depth],
    )
    answer = AnswerRecord(
        id=f"sums/{number}", kind="generated", text="", prompt_tokens=4, pieces=[piece]
    )
    return SampleRecord(
        mode=mode,
        task="sums",
        doc_id=number,
        doc_hash=f"d{number}",
        prompt_hash=f"p{number}",
        prompt=f"question {number}",
        answers=[answer],
        metrics={"exact_match,none": float(right)},
        primary="exact_match,none",
        value=float(right),
        higher_is_better=True,
    )


def _accuracy(answers: Mapping[str, Sequence[bool]]) -> Accuracy:
    base = next(iter(answers))
    modes = {}
    for mode, given in answers.items():
        found = compare_paired(answers[base], given)
        assert found is not None
        rate, paired = IntervalRecord.of(found.rate), PairedRecord.of(found, base)
        task = TaskAccuracy(metric="exact_match", filter="none", rate=rate, paired=paired)
        modes[mode] = ModeAccuracy(
            rate=rate,
            by_task={"sums": rate},
            paired=None if mode == base else paired,
            tasks={"sums": task},
        )
    return Accuracy(baseline=base, questions="q" * 64, modes=modes)


def _blocks(times: Walls, counts: Mapping[str, float]) -> list[BlockRecord]:
    found = []
    count = max((len(each) for each in times.values()), default=0)
    for index in range(count):
        order = [*times, *reversed(list(times))]
        for place, mode in enumerate(order):
            wall_s = times[mode][index]
            metrics = {"output_throughput": TOKENS / wall_s, "e2e": wall_s, **counts}
            found.append(
                BlockRecord(
                    index=index,
                    order=place,
                    mode=mode,
                    wall_s=wall_s,
                    decode_wall_s=wall_s * 0.8,
                    metrics=metrics,
                )
            )
    return found


def _mode(mode: str, values: Mapping[str, Sequence[float]]) -> ModeResult:
    schedule = mode.partition(":")[0].partition("@")[0]
    intervals = {}
    for name, found in values.items():
        interval = mean_interval(found) if len(set(found)) > 1 else None
        if interval is not None:
            intervals[name] = IntervalRecord.of(interval)
    return ModeResult(
        schedule=schedule,
        model="hand-made",
        exit=ExitSettings(rule="trace"),
        max_loops=4,
        width=8,
        max_residents=8,
        metrics={name: math.fsum(found) / len(found) for name, found in values.items()},
        intervals=intervals,
        depth_histogram=[5, 10, 5, 0] if schedule in ("cdb", "lockstep") else None,
    )


def _comparisons(blocks: Sequence[BlockRecord]) -> list[Comparison]:
    labels = list(dict.fromkeys(run.mode for run in blocks))
    found = []
    for scope in ("e2e", "decode"):
        runs = [
            BlockRun(
                run.index, run.mode, run.wall_s if scope == "e2e" else float(run.decode_wall_s or 0)
            )
            for run in blocks
        ]
        for mode in labels:
            for over in labels:
                logs = log_ratios(runs, mode, over) if mode != over else []
                interval = geometric_mean(logs)
                if interval is not None:
                    found.append(
                        Comparison(
                            mode=mode,
                            over=over,
                            scope="e2e" if scope == "e2e" else "decode",
                            speedup=IntervalRecord.of(interval),
                            log_ratios=logs,
                        )
                    )
    return found
