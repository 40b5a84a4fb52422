"""The shipped tasks without lm-eval: for checks and training where it is not installed.

A task is an lm-eval YAML file beside a JSONL of documents. Read here are the parts that local,
generated, exact-match tasks use; anything else is refused. A run asks through ``suite.py``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cdbench import resources
from cdbench.errors import UsageError

FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
DEFAULT_MAX_NEW_TOKENS = 256


@dataclass(frozen=True)
class Document:
    """One question: the prompt as it is given to the model, and the answer that counts as right."""

    task: str
    doc_id: int
    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """Documents and how their outputs are read. ``stops`` end an output where they appear."""

    name: str
    documents: tuple[Document, ...]
    max_new_tokens: int
    stops: tuple[str, ...]
    pattern: re.Pattern[str] | None
    group: int

    def extract(self, text: str) -> str | None:
        """The final answer in an output; None where there is none to be read."""
        if self.pattern is None:
            return text.strip()
        found = self.pattern.findall(text)
        if not found or not -len(found) <= self.group < len(found):
            return None
        return str(found[self.group]).strip()

    def is_right(self, text: str, document: Document) -> bool:
        """Exact match of the final answer."""
        return self.extract(text) == document.answer.strip()


def load_task(name: str, limit: int | None = None) -> Task:
    """A shipped task by name, or one by the path of its YAML file; at most ``limit`` documents.

    Raises UsageError for an unknown task and for what cannot be read.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = resources.task_path(name).with_suffix(".yaml")
    spec = _read_yaml(path)
    kind = spec.get("output_type", "generate_until")
    if kind != "generate_until":
        raise UsageError(f"{path}: output_type {kind!r} is not available; use generate_until")
    task_name = str(spec.get("task", path.stem))
    generation = spec.get("generation_kwargs") or {}
    pattern, group = _answer_pattern(spec, path)
    return Task(
        name=task_name,
        documents=_documents(spec, path, task_name, limit),
        max_new_tokens=int(generation.get("max_gen_toks", DEFAULT_MAX_NEW_TOKENS)),
        stops=tuple(str(stop) for stop in generation.get("until") or ()),
        pattern=pattern,
        group=group,
    )


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"task {str(path)!r}: no such file; see `cdbench list tasks`") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: {reason}; expected an lm-eval task in YAML") from None
    if not isinstance(spec, dict):
        raise UsageError(f"{path}: holds no mapping; expected an lm-eval task in YAML")
    return spec


def _answer_pattern(spec: dict[str, Any], path: Path) -> tuple[re.Pattern[str] | None, int]:
    """The regex filter that finds the final answer, and which match counts (-1: the last)."""
    for chain in spec.get("filter_list") or ():
        for step in chain.get("filter") or ():
            if step.get("function") == "regex":
                try:
                    pattern = re.compile(str(step["regex_pattern"]))
                except (KeyError, re.error) as error:
                    raise UsageError(f"{path}: regex filter: {error}; correct it") from None
                return pattern, int(step.get("group_select", 0))
    return None, 0


def _documents(
    spec: dict[str, Any], path: Path, task: str, limit: int | None
) -> tuple[Document, ...]:
    data = _data_file(spec, path)
    question, answer = (str(spec.get(key, "")) for key in ("doc_to_text", "doc_to_target"))
    try:
        lines = [line for line in data.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{data}: {error}; expected the documents of task {task}") from None
    documents = []
    for number, line in enumerate(lines[:limit], start=1):
        try:
            fields = json.loads(line)
            doc_id = int(fields.get("id", number - 1))
            documents.append(Document(task, doc_id, _fill(question, fields), _fill(answer, fields)))
        except (ValueError, KeyError, AttributeError) as error:
            raise UsageError(f"{data}:{number}: {error!r}; expected a JSON object a line") from None
    if not documents:
        raise UsageError(f"{data}: no documents; task {task} has nothing to ask")
    return tuple(documents)


def _data_file(spec: dict[str, Any], path: Path) -> Path:
    """The JSONL of a task: looked for beside its YAML, whatever the working directory is."""
    files = (spec.get("dataset_kwargs") or {}).get("data_files") or {}
    split = str(spec.get("test_split", "test"))
    named = files.get(split) if isinstance(files, dict) else files
    if spec.get("dataset_path") != "json" or not isinstance(named, str):
        raise UsageError(f"{path}: only local JSONL data is available; set dataset_path: json")
    file = Path(named)
    return file if file.is_absolute() else path.parent / file.name


def _fill(template: str, fields: dict[str, Any]) -> str:
    return FIELD.sub(lambda match: str(fields[match.group(1)]), template)
