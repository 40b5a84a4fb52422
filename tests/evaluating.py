"""What the tests of evaluations share: small models with text, tasks on disk, lm-eval requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from lm_eval.api.instance import Instance
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cdbench.models.loading import LoadedModel, ModelCard
from tests import tiny
from tests.generating import WORDS


def worded(**changes: Any) -> LoadedModel:
    """A random float64 Ouro whose gate exits at every depth, over a vocabulary of 23 words."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="zero"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return LoadedModel(
        name="worded",
        network=tiny.ouro(**changes),
        card=ModelCard(),
        tokenizer=tokenizer,
        stop_ids=frozenset({0}),
    )


def request(kind: str, *arguments: Any, doc_id: int = 0, idx: int = 0) -> Instance:
    """One request of a task called ``t``."""
    return Instance(kind, {}, arguments, idx, metadata=("t", doc_id, 1))


CHOICE: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "metric_list": [
        {"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")
    ],
}
WRITE: dict[str, Any] = {
    "output_type": "generate_until",
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["two three"], "max_gen_toks": 6, "do_sample": False},
    "filter_list": [
        {
            "name": "first",
            "filter": [
                {"function": "regex", "regex_pattern": r"^\s*(\w+)"},
                {"function": "take_first"},
            ],
        }
    ],
    "metric_list": [
        {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
    ],
}
READ: dict[str, Any] = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [
        {
            "metric": "word_perplexity",
            "aggregation": "weighted_perplexity",
            "higher_is_better": False,
        }
    ],
}

LETTERS = "abcdefghijklmnopq"
QUESTIONS: list[dict[str, Any]] = [
    {
        "question": " ".join(LETTERS[(i * 3 + j) % 17] for j in range(2 + i % 4)),
        "choices": ["a b c", "d", "two"],
        "gold": i % 3,
        "answer": LETTERS[i % 17],
        "text": " ".join(LETTERS[(i * 5 + j * j) % 17] for j in range(3 + i)),
    }
    for i in range(7)
]


def write_task(
    directory: Path,
    name: str,
    settings: dict[str, Any],
    documents: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Path:
    """A task file beside its documents; ``data_files`` is relative, as in a repository."""
    directory.mkdir(exist_ok=True)
    lines = [json.dumps(document) + "\n" for document in documents or QUESTIONS]
    (directory / f"{name}.jsonl").write_text("".join(lines))
    config = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": f"somewhere/{name}.jsonl"}},
        "test_split": "test",
        **settings,
        **changes,
    }
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in config.items() if v is not None}))
    return path
