"""Accuracy of a demo model by fixed depth, by exit threshold and by KV layout, on 2,100 questions.

    python -m scripts.accuracy_by_layout --out results/reference/accuracy/by-layout.json

The shipped tasks have 250 documents each, too few where a verdict within one point is asked for at
5 % discordance; here are 300 of each, the same ones and then more, from the same generator. Under
every layout the questions are asked of ``static``, of every fixed depth and of ``cdb`` at every
threshold, on one engine configuration. The card's own threshold is asked once more one row at a
time: the schedule is then another, and in float32 what it changes is rounding, which is counted.

The JSON has rates with intervals, paired differences over ``static`` of the same layout and over
``per-loop`` of the same mode, and the counts. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cdbench.bench import live
from cdbench.bench.accuracy import accuracy_of
from cdbench.bench.live import LivePass
from cdbench.bench.once import Kept
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.summary import start_manifest
from cdbench.config import load_config
from cdbench.grammar import Mode
from cdbench.schema import AnswerRecord, to_json
from cdbench.schema.files import write_whole
from cdbench.stats.agreement import common_prefix
from scripts import make_demo_tasks

MODEL = "demo-ouro"
LAYOUTS = ("per-loop", "first-shared", "shared")
THRESHOLDS = (0.999, 0.99, 0.9, 0.6)
DOCUMENTS = 300
NARROW = 1


def planned(tasks: Path, kept: Kept, layout: str, threshold: float, width: int | None) -> Plan:
    """One operating point; the model and the questions are loaded once."""
    keys = {"model": MODEL, "dense": "", "device": "cpu", "dtype": "float32", "work": "live"}
    asked = {"tasks": (str(tasks),), "limit": 10**6, "modes": "static,cdb"}
    point = {"kv.layout": layout, "exit": f"cdf@{threshold:g}", "engine.width": width}
    return make_plan(load_config(None, (), {**keys, **asked, **point}), kept)


def asked_of(plan: Plan, mode: Mode, label: str) -> LivePass:
    """All questions, asked of one mode."""
    print(f"{plan.kv_layout}: {label}", file=sys.stderr, flush=True)
    subject = plan.subject(mode, label)
    return live.answer(plan, subject, live.questions(plan), lambda _: None)


def passes_of(
    tasks: Path, kept: Kept, layout: str, thresholds: Sequence[float]
) -> dict[str, LivePass]:
    """Every mode's answers under one layout, by label."""
    plan = planned(tasks, kept, layout, thresholds[0], None)
    found = {"static": asked_of(plan, Mode("static"), "static")}
    for depth in range(1, plan.max_loops):
        found[f"static@{depth}"] = asked_of(plan, Mode("static", depth=depth), f"static@{depth}")
    for threshold in thresholds:
        own = planned(tasks, kept, layout, threshold, None)
        found[f"cdf@{threshold:g}"] = asked_of(own, Mode("cdb"), f"cdf@{threshold:g}")
    return found


def summary(passes: Mapping[str, LivePass], base: Mapping[str, LivePass] | None) -> dict[str, Any]:
    """Rates, depths and paired differences by label; ``base``: the answers under ``per-loop``."""
    accuracy = accuracy_of(passes)
    assert accuracy is not None
    return {
        label: {
            "accuracy": _plain(found.rate),
            "mean_depth": mean_depth(passes[label]),
            "over_static": _plain(found.paired),
            "over_per_loop": None if base is None else paired(base[label], passes[label]),
            "by_task": {task: rate.estimate for task, rate in found.by_task.items()},
        }
        for label, found in accuracy.modes.items()
    }


def mean_depth(passed: LivePass) -> float | None:
    """Executed, over the tokens that could exit early."""
    depths = [depth for sample in passed.samples for depth in sample.eligible_depths]
    return sum(depths) / len(depths) if depths else None


def paired(base: LivePass, passed: LivePass) -> Any:
    """One pass against another on the same questions."""
    accuracy = accuracy_of({"static": base, "other": passed})
    assert accuracy is not None
    found = accuracy.modes["other"].paired
    return None if found is None else _plain(found.model_copy(update={"over": "per-loop"}))


def changes(wide: LivePass, narrow: LivePass) -> dict[str, int]:
    """What another schedule changed: texts, tokens from their first difference on, and verdicts.

    ``changed_depths`` counts tokens before it that ran another number of loops.
    """
    before = {sample.key: sample for sample in wide.samples}
    found = dict.fromkeys(
        ("questions", "texts", "tokens", "changed_texts", "changed_tokens", "changed_depths"), 0
    )
    found["changed_answers"] = 0
    for sample in narrow.samples:
        other = before[sample.key]
        found["questions"] += 1
        found["changed_answers"] += sample.value != other.value
        for ours, theirs in zip(sample.answers, other.answers, strict=True):
            same = common_prefix(ours.tokens, theirs.tokens)
            longer = max(len(ours.tokens), len(theirs.tokens))
            found["texts"] += 1
            found["tokens"] += len(theirs.tokens)
            found["changed_texts"] += same < longer
            found["changed_tokens"] += longer - same
            pairs = zip(_depths(ours)[:same], _depths(theirs)[:same], strict=True)
            found["changed_depths"] += sum(a != b for a, b in pairs)
    return found


def _depths(answer: AnswerRecord) -> list[int]:
    return [depth for piece in answer.pieces for depth in piece.executed_depths]


def _plain(record: Any) -> Any:
    return None if record is None else json.loads(to_json(record))


def measured(documents: int, layouts: Sequence[str], thresholds: Sequence[float]) -> dict[str, Any]:
    """The whole record: ``documents`` of each task, under every layout."""
    kept, by_layout, rounding = Kept(), dict[str, Any](), dict[str, Any]()
    base: dict[str, LivePass] | None = None
    with tempfile.TemporaryDirectory() as scratch:
        tasks = Path(scratch)
        make_demo_tasks.main(["--out", scratch, "--documents", str(documents)])
        plan = planned(tasks, kept, layouts[0], thresholds[0], None)
        manifest = start_manifest(plan).model_copy(update={"given": None})
        own = float(plan.model.card.exit.partition("@")[2])
        card, asked = f"cdf@{own:g}", sorted({*thresholds, own}, reverse=True)
        for layout in layouts:
            passes = passes_of(tasks, kept, layout, asked)
            by_layout[layout] = summary(passes, base)
            base = base or passes
            narrow = planned(tasks, kept, layout, own, NARROW)
            alone = asked_of(narrow, Mode("cdb"), f"{card}, width {NARROW}")
            rounding[layout] = {"rule": card, **changes(passes[card], alone)}
        suite = live.suite_of(plan)
        return {
            "manifest": _plain(manifest),
            "model": MODEL,
            "dtype": "float32",
            "width": plan.config.engine.width or plan.config.engine.max_residents,
            "questions": {"count": len(suite.questions), "sha256": suite.hash},
            "layouts": by_layout,
            "width_1": rounding,
        }


def main(argv: list[str] | None = None) -> None:
    """Ask everything, then write the record whole."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of each task")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--thresholds", nargs="+", type=float, default=list(THRESHOLDS))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    record = measured(args.documents, args.layouts, args.thresholds)
    write_whole(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
