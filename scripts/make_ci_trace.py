"""Record what ``configs/ci.yaml`` replays: prompts, tokens and depths of the demo.

    python scripts/make_ci_trace.py

Writes ``configs/ci-prompts.jsonl`` and ``configs/ci-trace.json``. Needed again only when the demo
model or its exit rule changes; the committed baseline of counters changes with it.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

from cdbench.cli.main import main
from cdbench.evals.tasks import load_task
from cdbench.models.loading import load_model

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
PROMPTS = 14
MAX_NEW_TOKENS = 64


def record() -> None:
    """Prompts from every task in turn, continued live under the card's own exit rule."""
    model = load_model("demo-ouro")
    documents = [load_task(name).documents for name in model.card.tasks]
    mixed = [document for group in zip(*documents, strict=False) for document in group]
    lines = [json.dumps({"prompt": model.encode(d.prompt)}) for d in mixed[:PROMPTS]]
    prompts = CONFIGS / "ci-prompts.jsonl"
    prompts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = main(
            [
                "generate",
                "demo-ouro",
                *("--ids-file", str(prompts)),
                *("--max-new-tokens", str(MAX_NEW_TOKENS)),
                *("--device", "cpu", "--dtype", "float32", "--json"),
            ]
        )
    if code != 0:
        raise SystemExit(code)
    (CONFIGS / "ci-trace.json").write_text(output.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    record()
