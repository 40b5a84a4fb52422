"""Write the demo's held-out documents and their task files.

    python scripts/make_demo_tasks.py            # tasks/demo_*.jsonl and tasks/demo_*.yaml

Each document has ``id``, ``prompt``, ``completion`` (the worked reference) and ``answer`` (what is
scored). Each YAML beside it is a task of lm-evaluation-harness over the same file (its
``data_files`` path is relative to the repository root). The same seed writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from cdbench.workloads.demo_problems import TASKS, held_out_documents

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = 250
MAX_NEW_TOKENS = 80

YAML = """\
# Held-out documents of the demo's `{task}` problems, made by scripts/make_demo_tasks.py.
# Only the final answer is scored: what stands between `answer :` and the full stop.
task: demo_{task}
tag: cdbench_demo
dataset_path: json
dataset_kwargs:
  data_files:
    test: tasks/demo_{task}.jsonl
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until:
    - "<eos>"
  do_sample: false
  max_gen_toks: {max_new_tokens}
filter_list:
  - name: final-answer
    filter:
      - function: regex
        regex_pattern: "answer : ([^.]*?) \\\\."
        group_select: -1
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


def write_task(task: str, directory: Path, count: int, seed: int) -> None:
    """``demo_TASK.jsonl`` and ``demo_TASK.yaml`` in ``directory``."""
    lines = [
        json.dumps({"id": i, "prompt": d.prompt, "completion": d.completion, "answer": d.answer})
        for i, d in enumerate(held_out_documents(task, count, seed))
    ]
    (directory / f"demo_{task}.jsonl").write_text("\n".join(lines) + "\n")
    text = YAML.format(task=task, max_new_tokens=MAX_NEW_TOKENS)
    (directory / f"demo_{task}.yaml").write_text(text)


def main(argv: list[str] | None = None) -> None:
    """Write every task, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "tasks")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        write_task(task, args.out, args.documents, args.seed)


if __name__ == "__main__":
    main()
