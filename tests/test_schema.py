"""The contract: what is written reads back, what is undefined is null, errors are named."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import cdbench
from cdbench.errors import UsageError
from cdbench.runtime.core import FinishReason, RequestResult
from cdbench.schema import (
    Accuracy,
    BlockRecord,
    BoundRecord,
    Comparison,
    CpuInfo,
    DeviceInfo,
    ExitSettings,
    GenerateDocument,
    GeneratedRequest,
    IntervalRecord,
    Manifest,
    ModeAccuracy,
    ModeResult,
    PairedRecord,
    RequestRecord,
    Result,
    Validity,
    Workload,
    read_requests,
    read_result,
    to_json,
    write_requests,
    write_result,
)
from cdbench.stats.interval import Interval
from cdbench.stats.paired import compare_paired

MANIFEST = Manifest(
    started_utc="2026-01-01T00:00:00+00:00",
    command=["cdbench", "run"],
    cdbench_version="0.1.0",
    git=None,
    python="3.11.7",
    packages={"torch": None},
    platform="Linux 6 x86_64",
    cpu=CpuInfo(model=None, logical_cores=2, physical_cores=2, affinity=[0, 1], governor=None),
    ram_bytes=None,
    load_average=None,
    torch_threads=2,
    torch_interop_threads=None,
    device=DeviceInfo(kind="cpu"),
    env={},
    models=[],
)


def small_result(**changes: Any) -> Result:
    paired = compare_paired([True, False], [True, True])
    assert paired is not None
    rate = IntervalRecord.of(paired.rate)
    fields: dict[str, Any] = {
        "status": "complete",
        "validity": Validity(verdict="VALID"),
        "manifest": MANIFEST,
        "config": {"model": "demo-ouro", "exit": {"threshold": None}},
        "workload": Workload(
            hash="ab", source="tasks", requests=2, prompt_tokens=9, arrivals="all-at-once"
        ),
        "modes": {
            "cdb": ModeResult(
                schedule="cdb",
                model="demo-ouro",
                exit=ExitSettings(rule="cdf", threshold=0.5),
                max_loops=4,
                metrics={"tpot": 0.01, "ttft": None},
                intervals={"tpot": IntervalRecord.of(Interval(0.01, None, None, 3))},
                percentiles={"tpot": {"p50": None}},
                depth_histogram=[3, 2, 1, 0],
            )
        },
        "blocks": [BlockRecord(index=0, order=0, mode="cdb", wall_s=1.5)],
        "comparisons": [
            Comparison(
                mode="cdb",
                over="static",
                scope="decode",
                speedup=IntervalRecord(estimate=1.5, low=1.4, high=1.6, n=6),
            )
        ],
        "bounds": {"cdb": {"flop_bound": BoundRecord(value=1.6, scope="decode")}},
        "accuracy": Accuracy(
            baseline="static",
            modes={"cdb": ModeAccuracy(rate=rate, paired=PairedRecord.of(paired, "static"))},
        ),
        "samples": {"add": "samples_add.jsonl"},
    }
    return Result(**{**fields, **changes})


def request_record(**changes: Any) -> RequestRecord:
    done = RequestResult(
        id="r0",
        prompt_tokens=3,
        tokens=[7, 8],
        executed_depths=[4, 2],
        requested_depths=[4, 1],
        logprobs=[-0.1, -0.2],
        text=None,
        stop_depth=None,
        finish_reason=FinishReason.LENGTH,
        error=None,
        arrival_s=0.0,
        admitted_s=0.5,
        token_s=[1.0, 2.0],
        finish_s=2.0,
        task="add",
        doc_id=4,
    )
    record = RequestRecord.of(done, doc_id=4, mode="cdb", work="equal", block=1, order=2)
    return record.model_copy(update=changes)


def test_a_result_reads_back_as_written(tmp_path: Path) -> None:
    result = small_result()
    path = write_result(tmp_path, result)
    assert path.name == "result.json"
    assert read_result(tmp_path) == result
    assert read_result(path) == result
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_result_keys_are_those_of_the_contract() -> None:
    document = json.loads(to_json(small_result()))
    assert list(document) == [
        "schema_version",
        "status",
        "validity",
        "manifest",
        "config",
        "model",
        "workload",
        "modes",
        "blocks",
        "comparisons",
        "bounds",
        "break_even",
        "looks",
        "equal_memory",
        "environment",
        "accuracy",
        "exits",
        "scores",
        "samples",
        "files",
        "waterfall",
        "stages",
    ]
    assert document["schema_version"] == 1
    empty: list[str] = []
    assert document["validity"] == {"verdict": "VALID"} | dict.fromkeys(
        ("reasons", "flags", "timing"), empty
    )
    assert document["modes"]["cdb"]["metrics"] == {"tpot": 0.01, "ttft": None}
    assert document["accuracy"]["modes"]["cdb"]["paired"]["verdict"] == "cannot tell"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_becomes_null_or_is_refused(bad: float) -> None:
    mode = small_result().modes["cdb"].model_copy(update={"metrics": {"tpot": bad}})
    written = to_json(small_result(modes={"cdb": mode}))
    document = json.loads(written, parse_constant=pytest.fail)
    assert document["modes"]["cdb"]["metrics"]["tpot"] is None
    assert IntervalRecord(estimate=bad, n=0).estimate is None
    with pytest.raises(ValidationError):
        BlockRecord(index=0, order=0, mode="cdb", wall_s=bad)
    with pytest.raises(ValidationError):
        small_result(config={"x": bad})


def test_readers_keep_what_a_later_version_added(tmp_path: Path) -> None:
    document = json.loads(to_json(small_result()))
    document["energy"] = {"joules": 3}
    document["modes"]["cdb"]["colour"] = "blue"
    (tmp_path / "result.json").write_text(json.dumps(document), encoding="utf-8")
    again = json.loads(to_json(read_result(tmp_path)))
    assert again["energy"] == {"joules": 3}
    assert again["modes"]["cdb"]["colour"] == "blue"


def test_sections_made_later_may_be_absent(tmp_path: Path) -> None:
    document = json.loads(to_json(small_result()))
    needed = ("schema_version", "status", "validity", "manifest", "config", "workload", "modes")
    (tmp_path / "result.json").write_text(json.dumps({key: document[key] for key in needed}))
    assert read_result(tmp_path).accuracy is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"{", "schema version 1"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"schema_version": 2}', "schema_version"),
    ],
)
def test_unreadable_results_are_usage_errors(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_result(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_request_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    records = [request_record(), request_record(id="r1", task=None)]
    write_requests(path, records)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    required = {
        "id",
        "task",
        "doc_id",
        "mode",
        "block",
        "work",
        "prompt_tokens",
        "arrival_s",
        "admitted_s",
        "token_s",
        "tokens",
        "requested_depths",
        "executed_depths",
        "stop_depth",
        "finish_reason",
        "error",
    }
    assert required <= set(json.loads(lines[0]))
    assert list(read_requests(path)) == records
    path.write_text(lines[0] + "\n{}\n")
    with pytest.raises(UsageError, match=r"requests\.jsonl:2: id"):
        list(read_requests(path))


def test_generate_document_has_these_keys_and_no_others() -> None:
    request = GeneratedRequest(
        index=0,
        prompt_tokens=3,
        tokens=[1],
        depths=[4],
        logprobs=[-math.inf],
        text=None,
        finish_reason="length",
        error=None,
    )
    document = json.loads(to_json(GenerateDocument(model="m", config={}, requests=[request])))
    assert list(document) == ["schema_version", "model", "config", "requests"]
    assert document["requests"][0] == {
        "index": 0,
        "prompt_tokens": 3,
        "tokens": [1],
        "depths": [4],
        "logprobs": [None],
        "text": None,
        "finish_reason": "length",
        "error": None,
    }
    with pytest.raises(ValidationError):
        GenerateDocument.model_validate({**document, "extra": 1})


def test_the_contract_and_the_arithmetic_know_nothing_of_the_runtime() -> None:
    package = Path(cdbench.__file__).parent
    files = [
        *(package / "schema").iterdir(),
        *(package / "metrics").iterdir(),
        *(package / "stats").iterdir(),
    ]
    allowed = ("cdbench.metrics", "cdbench.stats", "cdbench.errors", "cdbench.schema")
    for file in files:
        if file.suffix != ".py":
            continue
        for name in _imports(file):
            ours = name.startswith("cdbench")
            assert not ours or name.startswith(allowed), f"{file.name} imports {name}"
            assert not name.startswith(("torch", "transformers")), f"{file.name} imports {name}"


def _imports(file: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names
