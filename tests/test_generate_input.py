"""``cdbench generate``: what it refuses, in one line, before anything is printed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from cdbench.models.checkpoint import save_checkpoint
from tests import tiny
from tests.generating import OURO, Capture, document, ids_file, refused, run, two, worded

__all__ = ["two", "worded"]


def test_a_request_beyond_the_budget_is_refused_alone(capsys: Capture, tmp_path: Path) -> None:
    lines = [{"prompt": [1, 2, 3], "max_new_tokens": n} for n in (2, 60, 3)]
    file = ids_file(tmp_path / "ids.jsonl", lines)
    flags = [OURO, "--ids-file", file, "--exit", "none", "--kv-budget-bytes", 60_000]
    code, out, err = run(capsys, *flags, "--json")
    assert (code, err.count("\n")) == (3, 1)
    assert f"1 of 3 requests refused: {file}:2 needs" in err
    found = json.loads(out)["requests"]
    assert [r["finish_reason"] for r in found] == ["length", "error", "length"]
    assert [len(r["tokens"]) for r in found] == [2, 0, 3]
    assert "60000 are available" in found[1]["error"]
    code, out, _ = run(capsys, *flags)
    assert code == 3
    assert "refused: needs" in out


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ("--mode lokstep", "did you mean 'lockstep'?"),
        ("--mode cdb,static", "unknown"),
        ("--mode static@9", "above the model's 4"),
        ("--mode static@auto", "needs static@D"),
        ("--mode dense:x", "runs 4 loops"),
        ("--exit cfd", "did you mean 'cdf'?"),
        ("--exit cdf@1.5", "out of range; use 0 to 1"),
        ("--exit cdf@0.5 --threshold 0.6", "contradicts"),
        ("--threshold 0.5", "no exit rule of its own"),
        ("--exit fixed:9", "1 to 4 loops"),
        ("--min-loops 5", "1 to 4 loops"),
        ("--max-loops 0", "greater than or equal to 1"),
        ("--max-loops 5", "above what"),
        ("--exit-lag 2", "0 or 1"),
        ("--kv sharde", "did you mean 'shared'?"),
        ("--dtype float8", "'float64'"),
        ("--device gpu", "'cuda'"),
        ("--max-new-tokens 0", "greater than or equal to 1"),
        ("--width 0", "greater than or equal to 1"),
        ("--coda-min-rows auto", "stage curves"),
        ("--weights random", "random:SEED"),
        ("--stop x", "has no tokenizer.json"),
        ("--prompt x", "given beside --ids-file"),
        ("--exit trace:/no/such", "No such file"),
        ("--max-new-tokens 600", "512 positions"),
    ],
)
def test_wrong_flags_are_one_line(capsys: Capture, two: Path, flags: str, part: str) -> None:
    assert part in refused(capsys, OURO, "--ids-file", two, *flags.split())


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"prompt": [1,}', "Invalid JSON"),
        ('{"prompt": []}', "the prompt is empty"),
        ('{"prompt": [1, 97]}', "token id 97 is outside the vocabulary"),
        ('{"prompt": [1], "force": [-1]}', "token id -1 is outside the vocabulary"),
        ('{"prompt": [1], "forse": [1]}', "`forse`"),
        ('{"prompt": [true]}', "`prompt.0`"),
        ('{"prompt": "one"}', "`prompt`"),
        ('{"prompt": [1], "max_new_tokens": 0}', "`max_new_tokens`"),
        ("[1]", "an object"),
    ],
)
def test_a_wrong_line_is_named(capsys: Capture, tmp_path: Path, line: str, part: str) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"prompt": [1]}\n\n' + line + "\n")
    said = refused(capsys, OURO, "--ids-file", file)
    assert f"{file}:3: " in said
    assert part in said


def test_missing_prompts_are_one_line(capsys: Capture, tmp_path: Path) -> None:
    assert "no prompt is given" in refused(capsys, OURO)
    assert "the prompt is empty" in refused(capsys, OURO, "--prompt", " ")
    assert "no tokenizer.json" in refused(capsys, OURO, "--prompt", "x")
    assert "No such file" in refused(capsys, OURO, "--ids-file", tmp_path / "none")
    assert "Is a directory" in refused(capsys, OURO, "--ids-file", tmp_path)
    (tmp_path / "empty").write_text("\n")
    assert "holds no prompt" in refused(capsys, OURO, "--ids-file", tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "no UTF-8" in refused(capsys, OURO, "--ids-file", tmp_path / "binary")


def test_a_rule_without_its_signal_is_refused(capsys: Capture, tmp_path: Path) -> None:
    save_checkpoint(tiny.llama(), tiny.LLAMA_CONFIG, tmp_path / "llama", torch.float32)
    file = ids_file(tmp_path / "ids.jsonl", [{"prompt": [1, 2]}])
    for mode in ("cdb", "dense:x"):
        line = refused(
            capsys, tmp_path / "llama", "--ids-file", file, "--exit", "cdf", "--mode", mode
        )
        assert "needs an exit gate, which a llama model lacks" in line


def test_prompts_come_from_standard_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, worded: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("one two\n\nthree\n"))
    found = document(capsys, worded, "--prompt", "-", "--prompt", "four a b", "--max-new-tokens", 2)
    assert [r["prompt_tokens"] for r in found["requests"]] == [2, 1, 3]
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": [1]}\nnonsense\n'))
    assert "standard input:2: " in refused(capsys, worded, "--ids-file", "-")
