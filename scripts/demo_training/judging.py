"""Held-out results of a demo model, by the engine itself: mode ``cdb``, float32, greedy.

The shipped weights answer the shipped tasks' documents under real exit rules, free-running; an
answer counts as a task's own extraction and exact match say. Validation documents, on which a
card's threshold is chosen, come from the same held-out side of the split but from another seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from cdbench.evals.tasks import Document, Task, load_task
from cdbench.grammar import ExitSpec
from cdbench.models.loading import LoadedModel
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.stats.paired import compare_paired
from cdbench.workloads.demo_problems import held_out_documents
from scripts.demo_training.trunk import log

#: Requests decoded together; how many changes no result.
RESIDENTS = 128
#: A card's rule may cost this much on validation documents, in points.
COST = 0.25
VALIDATION_SEED = 1


@dataclass(frozen=True)
class Rule:
    """How later tokens exit, of so many loops (0: the model's; prompts run that many too)."""

    name: str
    exit: ExitPolicy
    max_loops: int = 0


@dataclass(frozen=True)
class Question:
    """One document and the task that reads its answer out of a text."""

    task: Task
    document: Document


@dataclass(frozen=True)
class Judged:
    """Every question under one rule."""

    rule: Rule
    questions: list[Question]
    results: list[RequestResult]

    @property
    def right(self) -> list[bool]:
        pairs = zip(self.questions, self.results, strict=True)
        return [q.task.is_right(r.text or "", q.document) for q, r in pairs]

    @property
    def depths(self) -> list[int]:
        """Of the later tokens: neither the first, which is the prompt's, nor the stop."""
        return [depth for r in self.results for depth in r.executed_depths[1:]]

    @property
    def mean_depth(self) -> float:
        return sum(self.depths) / len(self.depths)

    def summary(self, max_loops: int) -> dict[str, Any]:
        """Accuracy per task and overall, and the depths of the later tokens."""
        by_task: dict[str, list[bool]] = {}
        for question, right in zip(self.questions, self.right, strict=True):
            by_task.setdefault(question.task.name, []).append(right)
        counts = Counter(self.depths)
        return {
            "accuracy": share(self.right),
            "tasks": {name: share(rights) for name, rights in by_task.items()},
            "mean_depth": self.mean_depth,
            "depth_share": [counts[d] / len(self.depths) for d in range(1, max_loops + 1)],
        }


def share(right: list[bool]) -> float:
    """The share of the answers that are right."""
    return sum(right) / len(right)


def shipped_questions(tasks: tuple[str, ...], limit: int | None) -> list[Question]:
    """The documents of the shipped tasks."""
    return [Question(t, d) for t in (load_task(n, limit) for n in tasks) for d in t.documents]


def validation_questions(tasks: tuple[str, ...], count: int) -> list[Question]:
    """Held-out documents outside the shipped tasks, ``count`` of each at most."""
    questions: list[Question] = []
    for name in tasks:
        task = load_task(name)
        shipped = {document.prompt for document in task.documents}
        drawn = held_out_documents(name.removeprefix("demo_"), count, VALIDATION_SEED)
        questions += [
            Question(task, Document(name, i, problem.prompt, problem.answer))
            for i, problem in enumerate(drawn)
            if problem.prompt not in shipped
        ]
    return questions


def answer(model: LoadedModel, questions: list[Question], rule: Rule) -> Judged:
    """Answer every question under one rule."""
    config = EngineConfig(max_residents=RESIDENTS, max_loops=rule.max_loops or None)
    engine = Engine(model.network, config, detokenize=model.decode)
    requests = [
        Request(
            str(i),
            model.encode(q.document.prompt),
            max_new_tokens=q.task.max_new_tokens,
            exit=rule.exit,
            stop_ids=model.stop_ids,
        )
        for i, q in enumerate(questions)
    ]
    results = {result.id: result for result in engine.run(requests)}
    judged = Judged(rule, questions, [results[request.id] for request in requests])
    log(f"{rule.name}: {share(judged.right):.4f} right at mean depth {judged.mean_depth:.3f}")
    return judged


def difference(ours: Judged, theirs: Judged) -> dict[str, Any]:
    """The paired difference in accuracy, in points, with its 95 % interval."""
    paired = compare_paired(theirs.right, ours.right)
    assert paired is not None, "there is at least one question"
    points = paired.difference.scaled(100)
    return {
        "points": points.estimate,
        "low": points.low,
        "high": points.high,
        "lost": paired.lost,
        "gained": paired.gained,
    }


def choose_threshold(
    model: LoadedModel, questions: list[Question], name: str, grid: list[float]
) -> float:
    """The least cautious threshold that costs at most ``COST`` on validation documents.

    ``grid`` goes from the most cautious on; it is not tried beyond the first that costs more.
    """
    full = answer(model, questions, full_depth())
    chosen = grid[0]
    for threshold in grid:
        told = answer(model, questions, adaptive(ExitSpec(name, threshold)))
        if difference(told, full)["points"] < -COST:
            break
        chosen = threshold
    return chosen


def full_depth() -> Rule:
    return Rule("static", ExitPolicy())


def adaptive(exit: ExitSpec) -> Rule:
    return Rule(str(exit), ExitPolicy(exit.rule, exit.threshold))


def judge(
    model: LoadedModel, questions: list[Question], rules: list[Rule], depths: list[int]
) -> dict[str, Any]:
    """Results at full depth, under some adaptive rules, and at fixed depths, prompts included."""
    loops = model.network.dims.max_loops
    full = answer(model, questions, full_depth())
    judged = [answer(model, questions, rule) for rule in rules]
    fixed = [
        answer(model, questions, Rule(f"static@{d}", ExitPolicy(), max_loops=d)) for d in depths
    ]
    results: dict[str, Any] = {"static": full.summary(loops)}
    for told in [*judged, *fixed]:
        results[told.rule.name] = told.summary(loops) | {
            "versus_full_depth": difference(told, full)
        }
    for told in fixed:
        results[told.rule.name] |= {
            f"versus_{ours.rule.name}": difference(told, ours) for ours in judged
        }
    return results
