"""``cdbench generate``: that what it computes is right, its defaults, and replays."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cdbench.models.checkpoint import save_checkpoint
from tests import tiny
from tests.generating import OURO, Capture, document, ids_file, refused, run, two, worded

__all__ = ["two", "worded"]

EXPECTED = json.loads((tiny.FIXTURE / "expected.json").read_text())


# What it computes.


@pytest.mark.parametrize("kv", ["per-loop", "first-shared", "shared"])
@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_the_fixture_cases_are_exact(capsys: Capture, tmp_path: Path, mode: str, kv: str) -> None:
    def settings(case: dict[str, Any]) -> tuple[Any, ...]:
        return case["rule"], case["threshold"], case["min_loops"], case["exit_lag"]

    cases = sorted((c for c in EXPECTED["cases"] if c["kv"] == kv), key=settings)
    for (rule, threshold, floor, lag), group in itertools.groupby(cases, settings):
        batch = list(group)
        lines = [
            {
                "prompt": EXPECTED["prompts"][case["prompt"]],
                "force": case["tokens"] if case["forced"] else None,
                "max_new_tokens": len(case["tokens"]),
            }
            for case in batch
        ]
        written = rule if rule == "none" else f"{rule}@{threshold}"
        flags = ["--exit", written, "--min-loops", floor, "--exit-lag", lag, "--kv", kv]
        file = ids_file(tmp_path / "ids.jsonl", lines)
        found = document(capsys, OURO, "--ids-file", file, "--mode", mode, *flags)["requests"]
        assert [r["tokens"] for r in found] == [c["tokens"] for c in batch], flags
        assert [r["depths"] for r in found] == [c["depths"] for c in batch], flags
        assert [r["index"] for r in found] == list(range(len(batch)))


def test_the_document_says_what_ran(capsys: Capture, two: Path) -> None:
    flags = ["--exit", "cdf", "--kv", "slots:3", "--dtype", "float64", "--width", 7, "--seed", 5]
    found = document(capsys, OURO, "--ids-file", two, "--max-new-tokens", 4, *flags)
    assert found["schema_version"] == 1
    assert found["model"] == OURO
    shown = {
        "mode": "cdb",
        "exit": "cdf@0.5",
        "kv": "slots:3",
        "dtype": "float64",
        "device": "cpu" if not torch.cuda.is_available() else "cuda",
        "width": 7,
        "seed": 5,
        "R": 4,
        "weights": "checkpoint",
        "replay": None,
    }
    assert shown.items() <= found["config"].items()
    # the line's own length wins over the flag
    assert [len(r["tokens"]) for r in found["requests"]] == [5, 4]
    assert all(r["depths"][0] == 4 and r["text"] is None for r in found["requests"])


def test_scheduling_changes_nothing(capsys: Capture, two: Path) -> None:
    sampled = ["--exit", "cdf@0.6", "--dtype", "float64", "--temperature", 1.3, "--top-k", 40]
    sampled += ["--top-p", 0.9, "--seed", 3, "--ids-file", two]
    shapes: list[list[object]] = [
        ["--mode", "cdb"],
        ["--mode", "lockstep"],
        ["--width", 1, "--max-residents", 1],
        ["--coda-min-rows", 2, "--prefill-tokens", 2],
    ]
    runs = [document(capsys, OURO, *sampled, *shape)["requests"] for shape in shapes]
    first = runs[0]
    for other in runs[1:]:
        assert [(r["tokens"], r["depths"]) for r in other] == [
            (r["tokens"], r["depths"]) for r in first
        ]
    assert first != document(capsys, OURO, *sampled, "--seed", 4)["requests"]


def test_a_static_depth_is_the_full_depth(capsys: Capture, two: Path) -> None:
    found = document(capsys, OURO, "--ids-file", two, "--mode", "static@2")
    assert found["config"]["R"] == 2
    assert {d for r in found["requests"] for d in r["depths"]} == {2}
    shallow = document(capsys, OURO, "--ids-file", two, "--max-loops", 2)
    assert shallow["requests"] == found["requests"]


def test_a_dense_model_is_served_like_any_other(capsys: Capture, tmp_path: Path) -> None:
    save_checkpoint(tiny.llama(), tiny.LLAMA_CONFIG, tmp_path / "llama", torch.float32)
    file = ids_file(tmp_path / "ids.jsonl", [{"prompt": [1, 2]}, {"prompt": [3]}])
    short = ["--ids-file", file, "--max-new-tokens", 20]
    runs = [
        document(capsys, tmp_path / "llama", *short, "--mode", mode)["requests"]
        for mode in ("dense:any-name", "cdb", "static")
    ]
    assert runs[0] == runs[1] == runs[2]
    assert {d for r in runs[0] for d in r["depths"]} == {1}


# Defaults, and what is said about them.


def test_a_card_gives_rule_and_layout(capsys: Capture, worded: Path) -> None:
    short = ["--max-new-tokens", 3]
    code, out, err = run(capsys, worded, "--prompt", "one two", *short, "--json")
    config = json.loads(out)["config"]
    assert (code, config["exit"], config["kv"], err) == (0, "cdf@0.7", "first-shared", "")
    lower = document(
        capsys, worded, "--prompt", "one", *short, "--threshold", 0.3, "--kv", "per-loop"
    )
    assert (lower["config"]["exit"], lower["config"]["kv"]) == ("cdf@0.3", "per-loop")


def test_a_checkpoint_without_a_rule_is_said_once(capsys: Capture, two: Path) -> None:
    code, _, err = run(capsys, OURO, "--ids-file", two)
    assert (code, err.count("\n")) == (0, 1)
    assert "nothing exits early" in err
    assert run(capsys, OURO, "--ids-file", two, "--exit", "none")[2] == ""
    assert run(capsys, OURO, "--ids-file", two, "--mode", "static")[2] == ""


def test_a_rule_without_effect_is_said(capsys: Capture, two: Path) -> None:
    _, out, err = run(capsys, OURO, "--ids-file", two, "--mode", "static", "--exit", "cdf@0.5")
    assert "--exit has no effect" in err
    assert "exit none" in out


def test_random_weights_are_marked(capsys: Capture, two: Path) -> None:
    code, out, _ = run(capsys, OURO, "--ids-file", two, "--weights", "random:7")
    assert code == 0
    assert "random weights (seed 7)" in out
    found = document(capsys, OURO, "--ids-file", two, "--weights", "random:7")
    assert found["config"]["weights"] == "random:7"


def test_stops(capsys: Capture, worded: Path) -> None:
    flags = ["--prompt", "one two", "--ignore-eos", "--max-new-tokens", 12]
    free = document(capsys, worded, *flags)
    words = free["requests"][0]["text"].split()
    assert free["requests"][0]["finish_reason"] == "length"
    stopped = document(capsys, worded, *flags, "--stop", words[2], "--stop", "zzz")["requests"][0]
    before = words[: words.index(words[2])]
    assert (stopped["text"].split(), stopped["finish_reason"]) == (before, "stop")
    assert stopped["tokens"] == free["requests"][0]["tokens"][: len(stopped["tokens"])]


def test_a_special_token_stops_as_an_id(capsys: Capture, worded: Path) -> None:
    """It never shows in the text, so a search for it would find nothing."""
    force = {"prompt": [1, 2], "max_new_tokens": 40}
    file = ids_file(worded / "ids.jsonl", [force])
    sampled = ["--temperature", 3, "--seed", 1, "--ids-file", file, "--ignore-eos"]
    free = document(capsys, worded, *sampled)["requests"][0]
    assert 0 in free["tokens"]
    found = document(capsys, worded, *sampled, "--stop", "<eos>")["requests"][0]
    assert found["tokens"] == free["tokens"][: free["tokens"].index(0)]
    assert found["finish_reason"] == "stop"


# Replay.


@pytest.fixture
def trace(capsys: Capture, tmp_path: Path, two: Path) -> Path:
    _, out, _ = run(
        capsys, OURO, "--ids-file", two, "--exit", "cdf@0.5", "--min-loops", 2, "--json"
    )
    path = tmp_path / "trace.json"
    path.write_text(out)
    return path


@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_a_trace_is_replayed(capsys: Capture, two: Path, trace: Path, mode: str) -> None:
    recorded = json.loads(trace.read_text())
    # At another layout the model would choose otherwise: the recorded work is done all the same.
    flags = ["--ids-file", two, "--mode", mode, "--kv", "shared", "--exit", f"trace:{trace}"]
    found = document(capsys, OURO, *flags)
    assert found["config"]["exit"] == "cdf@0.5"
    assert found["config"]["min_loops"] == 2
    assert found["config"]["replay"] == str(trace)
    for now, before in zip(found["requests"], recorded["requests"], strict=True):
        assert (now["tokens"], now["depths"]) == (before["tokens"], before["depths"])
    _, out, _ = run(capsys, OURO, *flags)
    wanted = f"replayed: tokens and depths are those recorded in {trace}"
    # A long path is folded at the terminal's width.
    assert "".join(wanted.split()) in "".join(out.split())


def test_a_replay_can_be_replayed(capsys: Capture, two: Path, trace: Path) -> None:
    again = document(capsys, OURO, "--ids-file", two, "--exit", f"trace:{trace}")
    trace.write_text(json.dumps(again))
    third = document(capsys, OURO, "--ids-file", two, "--exit", f"trace:{trace}")
    assert third == again


def test_a_trace_in_static_forces_tokens_only(capsys: Capture, two: Path, trace: Path) -> None:
    recorded = json.loads(trace.read_text())
    flags = ["--ids-file", two, "--exit", f"trace:{trace}", "--mode", "static"]
    found = document(capsys, OURO, *flags)
    assert [r["tokens"] for r in found["requests"]] == [r["tokens"] for r in recorded["requests"]]
    assert {d for r in found["requests"] for d in r["depths"]} == {4}


def test_a_trace_of_something_else_is_refused(
    capsys: Capture, tmp_path: Path, two: Path, trace: Path
) -> None:
    replay = ["--exit", f"trace:{trace}"]
    one = ids_file(tmp_path / "one.jsonl", [{"prompt": [1, 2, 3]}])
    assert "2 requests, but 1" in refused(capsys, OURO, "--ids-file", one, *replay)
    swapped = ids_file(tmp_path / "other.jsonl", [{"prompt": [4, 5]}, {"prompt": [1, 2, 3]}])
    assert "has 2 tokens" in refused(capsys, OURO, "--ids-file", swapped, *replay)
    forced = ids_file(
        tmp_path / "forced.jsonl", [{"prompt": [1, 2, 3], "force": [1]}, {"prompt": [4, 5]}]
    )
    assert "forces other tokens" in refused(capsys, OURO, "--ids-file", forced, *replay)
    shallow = refused(capsys, OURO, "--ids-file", two, *replay, "--max-loops", 3)
    assert "recorded at 4 loops" in shallow
    for flags in (["--exit", f"trace:{trace}@0.4"], [*replay, "--threshold", 0.4]):
        assert "no signals at other thresholds" in refused(capsys, OURO, "--ids-file", two, *flags)


@pytest.mark.parametrize("damage", ["", "{}", "[1]", "{", '{"model": 1}'])
def test_a_damaged_trace_is_refused(capsys: Capture, two: Path, trace: Path, damage: str) -> None:
    trace.write_text(damage)
    line = refused(capsys, OURO, "--ids-file", two, "--exit", f"trace:{trace}")
    assert "record one with" in line
