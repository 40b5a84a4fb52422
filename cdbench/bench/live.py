"""The live pass: every mode answers the same questions with its own text and its own exits.

It gives accuracy, natural lengths and exit histograms. Its wall times are kept nowhere: modes do
unequal work here, so they never form a ratio.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdbench.bench.accuracy import right_or_wrong
from cdbench.bench.plan import Plan, Subject
from cdbench.bench.samples import samples_of
from cdbench.grammar import Mode
from cdbench.runtime.core import Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.schema import SampleRecord
from cdbench.stats.paired import DEFAULT_DELTA
from cdbench.workloads.resolve import sampling

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.lm import EngineLM
    from cdbench.evals.scores import SuiteScores
    from cdbench.evals.suite import Question, Suite

Advance = Callable[[int], None]


@dataclass(frozen=True)
class LivePass:
    """One mode's answers. ``samples`` stand in the order of the questions it was asked.

    ``results`` are the texts it generated, in that order; likelihoods have none. ``scores`` is what
    lm-eval made of all of it.
    """

    subject: Subject
    results: tuple[RequestResult, ...]
    samples: tuple[SampleRecord, ...]
    scores: SuiteScores | None = None
    prefix_hit_rate: float | None = None
    preemptions: int = 0

    @property
    def accuracy(self) -> float:
        """Right answers among those that are right or wrong; 0 where no question is."""
        right = right_or_wrong(self.samples)
        return sum(right) / len(right) if right else 0.0


@dataclass(frozen=True)
class AutoDepth:
    """How ``static@auto`` came to its depth: accuracy by fixed depth on the choosing half."""

    depth: int
    full_accuracy: float
    tried: dict[int, float]
    chosen_on: int


def suite_of(plan: Plan) -> Suite:
    """The questions of a plan that has some."""
    assert plan.suite is not None, "a plan with live work or the tasks' prompts has a suite"
    return plan.suite


def questions(plan: Plan) -> tuple[Question, ...]:
    """All questions of all tasks, in a fixed order that mixes the tasks."""
    found = list(suite_of(plan).questions)
    random.Random(plan.config.workload.seed).shuffle(found)
    return tuple(found)


def answer(plan: Plan, subject: Subject, asked: Sequence[Question], advance: Advance) -> LivePass:
    """Ask one mode; ``advance`` is told how many more requests are done."""
    from cdbench.evals.evaluate import answer_suite, score_suite

    suite, engines = suite_of(plan), list[Engine]()
    order = Order(subject.label, subject.mode, frozenset(one.key for one in asked))
    plan.ranks.broadcast(order)
    outputs = answer_suite(suite, _model(plan, subject, advance, engines.append), order.questions)
    assert outputs is not None, "the first process has all answers"
    scores = score_suite(suite, outputs)
    texts: dict[tuple[str, int], list[RequestResult]] = {}
    for found in scores.answers:
        if found.result is not None:
            texts.setdefault(found.key, []).append(found.result)
    return LivePass(
        subject,
        tuple(result for one in asked for result in texts.get(one.key, [])),
        tuple(samples_of(subject.label, suite, scores, asked)),
        scores,
        engines[0].cache.prefix_hit_rate if engines else None,
        sum(engine.memory.counters.preemptions for engine in engines),
    )


@dataclass(frozen=True)
class Order:
    """What the first process asks of the others: a mode and its questions (task, document)."""

    label: str
    mode: Mode
    questions: frozenset[tuple[str, int]]


def follow(plan: Plan) -> None:
    """Answer one's share of whatever the first process asks, until it has no more questions."""
    from cdbench.evals.evaluate import answer_suite

    while (order := plan.ranks.broadcast()) is not None:
        subject = plan.subject(order.mode, order.label)
        answer_suite(suite_of(plan), _model(plan, subject), order.questions)


def dismiss(plan: Plan) -> None:
    """Tell the other processes that there are no more questions."""
    plan.ranks.broadcast(None)


def choosing_half(asked: Sequence[Question]) -> tuple[Question, ...]:
    """The questions on which ``static@auto`` picks its depth: every other one of each task."""
    chosen = _chosen(asked)
    return tuple(one for one in asked if one.key in chosen)


def judging_half(asked: Sequence[Question]) -> tuple[Question, ...]:
    """The other questions: those its verdict is given on."""
    chosen = _chosen(asked)
    return tuple(one for one in asked if one.key not in chosen)


def _chosen(asked: Sequence[Question]) -> frozenset[tuple[str, int]]:
    """Half of every task, or one off, so that neither half has mostly hard ones."""
    by_task = sorted(asked, key=lambda one: one.task)
    return frozenset(one.key for one in by_task[::2])


def half_of(passed: LivePass, subject: Subject, asked: Sequence[Question]) -> LivePass:
    """What a mode answered to some of its questions, as the answers of ``subject``.

    lm-eval's aggregates are of all of them, so there are none.
    """
    keys = {one.key for one in asked}
    return LivePass(
        subject,
        tuple(r for r in passed.results if (r.task, r.doc_id) in keys),
        tuple(
            sample.model_copy(update={"mode": subject.label})
            for sample in passed.samples
            if sample.key in keys
        ),
    )


def choose_depth(
    plan: Plan, static: LivePass, half: Sequence[Question], advance: Advance
) -> AutoDepth:
    """The cheapest fixed depth within δ of full depth, by point estimate on the choosing half."""
    own = half_of(static, static.subject, half)
    if not right_or_wrong(own.samples):
        # Nothing that is right or wrong was asked: no depth can be told from another.
        return AutoDepth(plan.max_loops, 0.0, {}, 0)
    full = own.accuracy
    tried: dict[int, float] = {}
    for depth in range(1, plan.max_loops):
        shallow = answer(plan, plan.subject(Mode("static", depth=depth)), half, advance)
        tried[depth] = shallow.accuracy
        if shallow.accuracy >= full - DEFAULT_DELTA:
            return AutoDepth(depth, full, tried, len(half))
    return AutoDepth(plan.max_loops, full, tried, len(half))


def requests_count(plan: Plan, asked: Sequence[Question]) -> int:
    """How many requests these questions come to, repeats counted."""
    keys = {one.key for one in asked}
    return sum(
        one.repeats or 1 for one in suite_of(plan).instances if (one.task_name, one.doc_id) in keys
    )


def requests_for(plan: Plan, subject: Subject, asked: Sequence[Question]) -> list[Request]:
    """The live requests for the texts among these questions, in this order.

    A likelihood generates nothing and has none.
    """
    from cdbench.evals.generating import requests_of

    suite = suite_of(plan)
    texts = {
        (one.task_name, one.doc_id): one
        for one in suite.instances
        if one.request_type == "generate_until"
    }
    wanted = [texts[one.key] for one in asked if one.key in texts]
    return requests_of(_model(plan, subject).point, wanted)


def positions_asked(plan: Plan, subject: Subject) -> list[tuple[str, int]]:
    """Every request of the questions, as a person knows it, with the positions it may come to."""
    instances = suite_of(plan).instances
    found = _model(plan, subject).positions(instances)
    names = (f"{one.task_name}/{one.doc_id}" for one in instances)
    return list(zip(names, found, strict=True))


def _model(
    plan: Plan,
    subject: Subject,
    advance: Advance | None = None,
    served: Callable[[Engine], None] | None = None,
) -> EngineLM:
    from cdbench.evals.lm import EngineLM

    params = sampling(plan.config)
    return EngineLM(
        subject.model,
        plan.settings(subject),
        subject.policy,
        codec=plan.codecs[id(subject.model)],
        seed=params.seed,
        ranks=plan.ranks,
        # Where the run asks for draws it means all texts; else a task may ask for its own.
        sampling=params if params.temperature > 0 else None,
        advance=advance,
        served=served,
    )
