"""The live pass: every mode answers the same questions with its own text and its own exits.

It gives accuracy, natural lengths and exit histograms. Its wall times are kept nowhere: modes do
unequal work here, so they never form a ratio.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdbench.bench.plan import Plan, Subject
from cdbench.evals.tasks import Document
from cdbench.grammar import Mode
from cdbench.runtime.core import Request, RequestResult
from cdbench.stats.paired import DEFAULT_DELTA
from cdbench.workloads.resolve import sampling, stops

Advance = Callable[[int], None]


@dataclass(frozen=True)
class LivePass:
    """One mode's answers, aligned with ``documents``."""

    subject: Subject
    documents: tuple[Document, ...]
    results: tuple[RequestResult, ...]
    right: tuple[bool, ...]
    prefix_hit_rate: float | None = None
    preemptions: int = 0

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


@dataclass(frozen=True)
class AutoDepth:
    """How ``static@auto`` came to its depth: accuracy by fixed depth on the choosing half."""

    depth: int
    full_accuracy: float
    tried: dict[int, float]
    chosen_on: int


def questions(plan: Plan) -> tuple[Document, ...]:
    """All documents of all tasks, in a fixed order that mixes the tasks."""
    documents = [d for task in plan.tasks for d in task.documents]
    random.Random(plan.config.workload.seed).shuffle(documents)
    return tuple(documents)


def answer(
    plan: Plan, subject: Subject, documents: Sequence[Document], advance: Advance
) -> LivePass:
    """Ask one mode; ``advance`` is told of every finished question."""
    requests = requests_for(plan, subject, documents)
    results: dict[str, RequestResult] = {}
    engine = plan.engine(subject)
    for result in engine.run(requests):
        results[result.id] = result
        advance(1)
    ordered = tuple(results[request.id] for request in requests)
    tasks = {task.name: task for task in plan.tasks}
    right = tuple(
        r.error is None and tasks[d.task].is_right(r.text or "", d)
        for r, d in zip(ordered, documents, strict=True)
    )
    return LivePass(
        subject,
        tuple(documents),
        ordered,
        right,
        engine.cache.prefix_hit_rate,
        engine.memory.counters.preemptions,
    )


def choosing_half(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The questions on which ``static@auto`` picks its depth."""
    return tuple(documents[::2])


def judging_half(documents: Sequence[Document]) -> tuple[Document, ...]:
    """The other questions: those its verdict is given on."""
    return tuple(documents[1::2])


def choose_depth(plan: Plan, static: LivePass, advance: Advance) -> AutoDepth:
    """The cheapest fixed depth within δ of full depth, by point estimate on the choosing half."""
    half = choosing_half(static.documents)
    full = sum(static.right[::2]) / len(half)
    tried: dict[int, float] = {}
    for depth in range(1, plan.max_loops):
        shallow = answer(plan, plan.subject(Mode("static", depth=depth)), half, advance)
        tried[depth] = shallow.accuracy
        if shallow.accuracy >= full - DEFAULT_DELTA:
            return AutoDepth(depth, full, tried, len(half))
    return AutoDepth(plan.max_loops, full, tried, len(half))


def requests_for(plan: Plan, subject: Subject, documents: Sequence[Document]) -> list[Request]:
    """The live requests that ask a mode these questions."""
    model, params = subject.model, sampling(plan.config)
    endings = {task.name: (stops(model, task.stops), task.max_new_tokens) for task in plan.tasks}
    requests = []
    for document in documents:
        (stop_ids, stop_strings), max_new_tokens = endings[document.task]
        requests.append(
            Request(
                id=f"{document.task}/{document.doc_id}",
                prompt=model.encode(document.prompt),
                max_new_tokens=max_new_tokens,
                exit=subject.policy,
                sampling=params,
                stop_ids=stop_ids | model.stop_ids,
                stop_strings=stop_strings,
                task=document.task,
                doc_id=document.doc_id,
            )
        )
    return requests
