"""Experiments whose answers are known beforehand: does the instrument find them?

    python scripts/known_answers.py --out results/reference/known-answers/result.json

- ``aa``: ``static`` against itself, a hundred times over. A 95 % interval must contain 1 in 90 to
  99 of them: fewer, and speed-ups would be claimed out of noise; all of them, and the intervals
  would be too wide to be 95 % ones.
- ``full``: every token at full depth. There is nothing to save, so ``cdb`` may only lose: not more
  than 3 % to ``static``. Once with no exit rule (the schedule alone), once with the gate running at
  every loop and never asking for an exit (what the rule costs stands beside it).
- ``shallow``: every token at depth 1 on random weights whose core is all there is. In the decode
  scope ``cdb`` must come near R times ``static``.

Each answer is a verdict on an interval: ``holds``, ``wrong`` or ``inconclusive``; ``reported``
where nothing is claimed. A wrong one fails the script (exit code 1). On a machine whose threads are
held up by others, one thread (``OMP_NUM_THREADS=1``) and more ``--blocks`` give narrower intervals.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# As the command line sets it, before torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.bench import live  # noqa: E402
from cdbench.bench.compared import compare  # noqa: E402
from cdbench.bench.equal import (  # noqa: E402
    RecordedRequest,
    TimedRun,
    TimedSubject,
    record,
    run_block,
)
from cdbench.bench.plan import Plan, Subject, make_plan  # noqa: E402
from cdbench.config import load_config  # noqa: E402
from cdbench.grammar import Mode  # noqa: E402
from cdbench.stats.interval import Interval  # noqa: E402

FULL_DEPTH_LOSS = 0.03
NEAR_R = 0.85
"""Share of R that counts as near it: embedding, head and the host take the rest."""
AA_RANGE = (90, 99)
AGAIN = "static again"


@dataclass(frozen=True)
class Answer:
    """One experiment's verdict, and the figures behind it."""

    name: str
    claim: str
    verdict: str
    figures: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=sorted(EXPERIMENTS), action="append")
    parser.add_argument("--trials", type=int, default=100, help="A/A experiments")
    parser.add_argument("--blocks", type=int, default=12, help="blocks of the other experiments")
    parser.add_argument("--out", type=Path, help="where the JSON document goes")
    options = parser.parse_args()
    answers = []
    for name in options.only or EXPERIMENTS:
        for answer in EXPERIMENTS[name](options):
            answers.append(answer)
            print(f"{answer.verdict:12s} {answer.name}: {answer.claim}; {_words(answer.figures)}")
            sys.stdout.flush()
    if options.out is not None:
        _write(options.out, answers)
    sys.exit(any(answer.verdict == "wrong" for answer in answers))


def aa(options: argparse.Namespace) -> list[Answer]:
    """``static`` against itself: how many intervals contain 1."""
    plan = _plan(model="demo-ouro", requests=8, residents=8, new_tokens=12)
    workload = _recorded(plan)
    subjects = [
        TimedSubject(plan, plan.subject(Mode("static"), label), workload)
        for label in ("static", AGAIN)
    ]
    _warm(subjects)
    contained, estimates = {"e2e": 0, "decode": 0}, []
    for _ in range(options.trials):
        runs = [run for block in range(6) for run in run_block(subjects, block)]
        for scope in contained:
            interval = _speedup(runs, AGAIN, scope)
            contained[scope] += 1 in interval
            if scope == "e2e":
                estimates.append(interval.estimate)
    share = [round(count * 100 / options.trials) for count in contained.values()]
    low, high = AA_RANGE
    inside = all(low <= count <= high for count in share)
    return [
        Answer(
            "static against itself",
            f"between {low} and {high} of 100 intervals contain 1",
            "holds" if inside else "wrong",
            {
                "trials": options.trials,
                "contain_1": contained,
                "largest_estimate": max(estimates),
                "smallest_estimate": min(estimates),
            },
        )
    ]


def full(options: argparse.Namespace) -> list[Answer]:
    """All tokens at full depth: what continuous depth batching costs when it can save nothing."""
    answers = []
    for rule, name in (("none", "no exit rule"), (None, "the gate runs and never exits")):
        plan = _plan(model="demo-ouro", requests=96, residents=32, exit_rule=rule)
        runs = _timed(plan, _at_depth(_recorded(plan), plan.max_loops), options.blocks)
        interval = _speedup(runs, "cdb", "e2e")
        claim = f"cdb is not more than {FULL_DEPTH_LOSS:.0%} slower than static"
        verdict = _at_least(interval, 1 - FULL_DEPTH_LOSS)
        if rule is None:
            # Nothing is known beforehand of what a gate costs.
            claim, verdict = "what the gate costs is in this one", "reported"
        figures = {"speedup_e2e": _record(interval), "blocks": interval.n}
        answers.append(Answer(f"full depth, {name}", claim, verdict, figures))
    return answers


def shallow(options: argparse.Namespace) -> list[Answer]:
    """All tokens at depth 1 with a core that is nearly everything: near R."""
    plan = _plan(
        model="configs/models/bench-ouro",
        requests=24,
        residents=8,
        weights="random:0",
        layers="0-8-0",
        exit_rule="fixed:1",
        new_tokens=24,
    )
    runs = _timed(plan, _at_depth(_recorded(plan), 1), options.blocks)
    interval = _speedup(runs, "cdb", "decode")
    loops = plan.max_loops
    return [
        Answer(
            "depth 1, large core (random weights)",
            f"cdb is at least {NEAR_R:g} of R = {loops} times as fast as static, decode scope",
            _at_least(interval, NEAR_R * loops),
            {"speedup_decode": _record(interval), "R": loops},
        )
    ]


EXPERIMENTS = {"aa": aa, "full": full, "shallow": shallow}


def _plan(
    model: str,
    requests: int,
    residents: int,
    exit_rule: str | None = None,
    weights: str = "checkpoint",
    layers: str | None = None,
    new_tokens: int | None = None,
) -> Plan:
    flags = {
        "model": str(ROOT / model) if "/" in model else model,
        "dense": "",
        "modes": "static,cdb",
        "work": "equal",
        "exit.rule": exit_rule,
        "weights": weights,
        "layers": layers,
        "workload.requests": requests,
        "workload.output": new_tokens,
        "engine.max_residents": residents,
        "device": "cpu",
    }
    return make_plan(load_config(flags=flags))


def _recorded(plan: Plan) -> list[RecordedRequest]:
    """The workload: a sample of the tasks' questions with the full-depth model's own answers."""
    subject = plan.subject(Mode("static"))
    documents = live.questions(plan)[: plan.config.workload.requests]
    requests = live.requests_for(plan, subject, documents)
    if isinstance(plan.config.workload.output, int):
        length = plan.config.workload.output
        requests = [
            replace(r, max_new_tokens=length, ignore_eos=True, stop_strings=()) for r in requests
        ]
    results = {result.id: result for result in plan.engine(subject, live=False).run(requests)}
    found = [record(request, results[request.id]) for request in requests]
    return [r for r in found if r is not None]


def _at_depth(workload: Sequence[RecordedRequest], depth: int) -> list[RecordedRequest]:
    """The same tokens with every later token at one depth; first tokens stay at full depth."""
    return [
        replace(
            r,
            executed_depths=(r.executed_depths[0], *[depth] * (len(r.tokens) - 1)),
            requested_depths=(r.requested_depths[0], *[depth] * (len(r.tokens) - 1)),
        )
        for r in workload
    ]


def _timed(plan: Plan, workload: list[RecordedRequest], blocks: int) -> list[TimedRun]:
    modes: list[Subject] = [plan.subject(Mode(kind)) for kind in ("static", "cdb")]
    subjects = [TimedSubject(plan, subject, workload) for subject in modes]
    _warm(subjects)
    return [run for block in range(blocks) for run in run_block(subjects, block)]


def _warm(subjects: Sequence[TimedSubject]) -> None:
    for subject in subjects:
        subject.run(-1, -1)
    # As in `cdbench run`: collecting between runs need not look at what stays.
    gc.collect()
    gc.freeze()


def _speedup(runs: Sequence[TimedRun], mode: str, scope: str) -> Interval:
    found = next(c for c in compare(runs) if (c.mode, c.over, c.scope) == (mode, "static", scope))
    return found.speedup.to_interval()


def _at_least(interval: Interval, floor: float) -> str:
    assert interval.low is not None, "six blocks or more were run"
    assert interval.high is not None
    if interval.low >= floor:
        return "holds"
    return "wrong" if interval.high < floor else "inconclusive"


def _record(interval: Interval) -> dict[str, Any]:
    return {"estimate": interval.estimate, "low": interval.low, "high": interval.high}


def _words(figures: dict[str, Any]) -> str:
    parts = []
    for name, value in figures.items():
        if isinstance(value, dict) and "low" in value:
            value = f"{value['estimate']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"
        elif isinstance(value, float) and math.isfinite(value):
            value = f"{value:.3f}"
        parts.append(f"{name} {value}")
    return ", ".join(parts)


def _write(path: Path, answers: Sequence[Answer]) -> None:
    document = {
        "manifest": manifest.collect(device="cpu").model_dump(mode="json"),
        "answers": [answer.__dict__ for answer in answers],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


if __name__ == "__main__":
    main()
