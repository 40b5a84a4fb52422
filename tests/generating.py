"""What the tests of ``cdbench generate`` share: running it, and small models and prompts to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cdbench.cli.main import main
from cdbench.models.checkpoint import save_checkpoint
from cdbench.schema import GenerateDocument
from tests import tiny

Capture = pytest.CaptureFixture[str]

OURO = str(tiny.FIXTURE)
WORDS = ["<eos>", "zero", "one", "two", "three", "four", *"abcdefghijklmnopq"]


def run(capsys: Capture, *args: object) -> tuple[int, str, str]:
    code = main(["generate", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys: Capture, *args: object) -> dict[str, Any]:
    code, out, err = run(capsys, *args, "--json")
    assert code == 0, err
    GenerateDocument.model_validate_json(out)
    parsed: dict[str, Any] = json.loads(out)
    return parsed


def ids_file(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def refused(capsys: Capture, *args: object) -> str:
    """The one line of a refusal, found before anything is printed."""
    code, out, err = run(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("cdbench: ")
    return err


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two prompts of different lengths, for the fixture's vocabulary of 97."""
    return ids_file(
        tmp_path / "two.jsonl",
        [{"prompt": [1, 2, 3], "max_new_tokens": 5}, {"prompt": [4, 5]}],
    )


@pytest.fixture(scope="session")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Ouro with a tokenizer, a stop id and a card."""
    directory = tmp_path_factory.mktemp("worded")
    save_checkpoint(tiny.ouro(), tiny.OURO_CONFIG, directory, torch.float32)
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="zero"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "generation_config.json").write_text('{"eos_token_id": 0}')
    (directory / "card.json").write_text('{"exit": "cdf@0.7", "kv": "first-shared"}')
    return directory
