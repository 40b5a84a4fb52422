"""A suite answered in one mode, and the answers scored by lm-eval itself.

Answering and scoring are apart: the answers of all ranks are gathered first, so that lm-eval scores
them once, in document order, whoever gave them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lm_eval.api.metrics import acc_all, mean, stderr_for_metric
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.utils import handle_non_serializable

from cdbench.errors import InvalidRunError
from cdbench.evals.answers import Answer, Response
from cdbench.evals.lm import EngineLM
from cdbench.evals.quiet import quiet, seeded
from cdbench.evals.scores import GroupMetric, GroupScores, MetricScore, SuiteScores, TaskScores
from cdbench.evals.suite import Suite, TaskInfo

DocumentKey = tuple[str, int]
"""A task and a document of it."""

CLOSED_FORM = (mean, acc_all)
"""Aggregates whose error lm-eval has a formula for; others it would draw samples for."""


@dataclass(frozen=True)
class Outputs:
    """What one mode answered: for each of the suite's requests the answers of its repeats.

    There are none of a document that was not asked.
    """

    answers: tuple[tuple[Answer, ...], ...]

    @property
    def flat(self) -> tuple[Answer, ...]:
        return tuple(answer for repeats in self.answers for answer in repeats)


def evaluate_suite(suite: Suite, lm: EngineLM) -> SuiteScores | None:
    """Answer the suite and score it. Among several ranks only the first has the scores."""
    outputs = answer_suite(suite, lm)
    return None if outputs is None else score_suite(suite, outputs)


def answer_suite(
    suite: Suite, lm: EngineLM, only: Collection[DocumentKey] | None = None
) -> Outputs | None:
    """Run the suite's requests, in lm-eval's order, on this rank's documents.

    ``only`` are the documents to ask; None: all. The first rank gets the answers of all; the others
    None. InvalidRunError where the ranks have not built the same requests.
    """
    mine = [i for i in _own(suite, lm) if only is None or _key(suite.instances[i]) in only]
    kinds = list(dict.fromkeys(suite.instances[i].request_type for i in mine))
    found: dict[int, list[Answer]] = {i: [] for i in mine}
    for kind in kinds:
        of_kind = [i for i in mine if suite.instances[i].request_type == kind]
        numbers = [i for i in of_kind for _ in range(suite.instances[i].repeats or 1)]
        lm.answers.clear()
        getattr(lm, kind)([suite.instances[i] for i in numbers])
        for i, answer in zip(numbers, lm.answers, strict=True):
            found[i].append(answer)
    parts = lm.gather_object((suite.hash, found))
    if parts is None:
        return None
    if any(hashed != suite.hash for hashed, _ in parts):
        raise InvalidRunError(
            "tasks: the processes built different requests; give all the same files and options"
        )
    merged = {i: answers for _, part in parts for i, answers in part.items()}
    return Outputs(tuple(tuple(merged.get(i, ())) for i in range(len(suite.instances))))


def _key(instance: Any) -> DocumentKey:
    return instance.task_name, instance.doc_id


def _own(suite: Suite, lm: EngineLM) -> list[int]:
    """The requests whose documents are this rank's."""
    places = {
        (task.name, doc_id): place
        for task in suite.tasks
        for place, doc_id in enumerate(task.doc_ids)
    }
    return [
        i
        for i, one in enumerate(suite.instances)
        if lm.ranks.owns(places[one.task_name, one.doc_id])
    ]


class _Playback(LM):  # type: ignore[misc]
    """Gives lm-eval the responses that there are already."""

    def __init__(self, suite: Suite, outputs: Outputs) -> None:
        super().__init__()
        self._left: dict[int, list[Response]] = {
            id(one): [answer.response for answer in answers]
            for one, answers in zip(suite.instances, outputs.answers, strict=True)
        }

    def _next(self, requests: Iterable[Any]) -> list[Any]:
        return [self._left[id(one)].pop(0) for one in requests]

    generate_until = loglikelihood = loglikelihood_rolling = _next


def score_suite(suite: Suite, outputs: Outputs) -> SuiteScores:
    """lm-eval's own filters, metrics and aggregates over the answers, the same for every mode.

    Of documents that were not asked nothing is scored; a group of which a task was not asked is
    left out.
    """
    asked: dict[str, set[int]] = {}
    for answer in outputs.flat:
        task_name, doc_id = answer.key
        asked.setdefault(task_name, set()).add(doc_id)
    infos = [task for task in suite.tasks if task.name in asked]
    groups = [name for name, members in suite.groups.items() if asked.keys() >= set(members)]
    failed = {task.name: _failed(task, outputs.flat) for task in infos}
    for one in suite.instances:
        one.resps, one.filtered_resps = [], {}
    for task in infos:
        # An empty text is scored as what it is; minus infinity could win by accident.
        left_out = () if task.output_type == "generate_until" else failed[task.name]
        suite.frozen[task.name].ask(asked[task.name], left_out)
    loaded = {
        "tasks": {task.name: suite.loaded.tasks[task.name] for task in infos},
        "groups": {name: suite.loaded.groups[name] for name in groups},
    }
    with quiet() as notes, seeded():
        results = evaluate(_Playback(suite, outputs), loaded, bootstrap_iters=0, log_samples=True)
    tasks = {
        task.name: _task_scores(suite, task, results, outputs.flat, failed[task.name])
        for task in infos
    }
    scored = {name: _group_scores(suite, name, results, tasks) for name in groups}
    return SuiteScores(
        suite.hash, tasks, scored, outputs.flat, tuple(dict.fromkeys((*suite.notes, *notes.texts)))
    )


def _failed(task: TaskInfo, answers: Sequence[Answer]) -> tuple[int, ...]:
    found = {a.doc_id for a in answers if a.task == task.name and a.error is not None}
    return tuple(doc_id for doc_id in task.doc_ids if doc_id in found)


def _task_scores(
    suite: Suite,
    task: TaskInfo,
    results: dict[str, Any],
    answers: Sequence[Answer],
    failed: tuple[int, ...],
) -> TaskScores:
    samples = [_plain(sample) for sample in results["samples"][task.name]]
    values: dict[tuple[str, str], dict[int, Any]] = {}
    for sample in results["samples"][task.name]:
        for metric in sample["metrics"]:
            by_document = values.setdefault((metric, sample["filter"]), {})
            by_document[sample["doc_id"]] = sample[metric]
    scores = [
        _metric_score(suite, task, key, found, results["results"][task.name])
        for key, found in values.items()
    ]
    scores.sort(key=lambda score: (score.metric, score.filter) != task.primary)
    own = [answer for answer in answers if answer.task == task.name]
    return TaskScores(
        task=task.name,
        metrics=tuple(scores),
        failed=failed,
        tokens=sum(len(piece.executed_depths) for a in own for piece in a.pieces),
        later_tokens=sum(answer.later_tokens for answer in own),
        samples=tuple(samples),
    )


def _metric_score(
    suite: Suite,
    task: TaskInfo,
    key: tuple[str, str],
    values: dict[int, Any],
    result: dict[str, Any],
) -> MetricScore:
    metric, chain = key
    lm_task = suite.loaded.tasks[task.name]
    combine = lm_task.aggregation().get(metric, mean)
    error = None
    if combine in CLOSED_FORM and len(values) > 1:
        error = float(stderr_for_metric(combine, bootstrap_iters=1)(list(values.values())))
    return MetricScore(
        metric=metric,
        filter=chain,
        higher_is_better=lm_task.higher_is_better().get(metric, task.metrics.get(metric)),
        values={doc_id: _plain(value) for doc_id, value in sorted(values.items())},
        aggregate=_number(result.get(f"{metric},{chain}")),
        stderr=error,
    )


def _group_scores(
    suite: Suite, name: str, results: dict[str, Any], tasks: dict[str, TaskScores]
) -> GroupScores:
    found = []
    for spec in suite.loaded.groups[name].aggregate_metric_list or ():
        for key, value in results["results"].get(name, {}).items():
            metric, comma, chain = str(key).partition(",")
            if not comma or metric != spec.metric or _number(value) is None:
                continue
            if spec.filter_list is not None and chain not in spec.filter_list:
                continue
            weights = _weights(suite.groups[name], tasks, (metric, chain), spec.weight_by_size)
            found.append(GroupMetric(metric, chain, float(value), weights))
    return GroupScores(name, suite.groups[name], tuple(found))


def _weights(
    members: Sequence[str],
    tasks: dict[str, TaskScores],
    key: tuple[str, str],
    by_size: bool,
) -> dict[str, float]:
    sizes = {
        name: (len(score.values) if by_size else 1)
        for name in members
        for score in tasks[name].metrics
        if (score.metric, score.filter) == key
    }
    total = sum(sizes.values())
    return {name: size / total for name, size in sizes.items()}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value else None


def _plain(value: Any) -> Any:
    """As JSON has it: numpy's numbers as numbers, tuples as lists, anything else as text."""
    return json.loads(json.dumps(value, default=handle_non_serializable))
