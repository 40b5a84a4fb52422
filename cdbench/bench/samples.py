"""From what a mode answered to the samples that are stored: one a question, in a given order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cdbench.schema.samples import AnswerRecord, OwnRuleRecord, PieceRecord, SampleRecord

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.answers import Answer
    from cdbench.evals.own_rule import OwnRule
    from cdbench.evals.scores import SuiteScores, TaskScores
    from cdbench.evals.suite import Question, Suite


def samples_of(
    mode: str, suite: Suite, scores: SuiteScores, questions: Sequence[Question]
) -> Iterator[SampleRecord]:
    """One record for each question, in this order."""
    from cdbench.evals.own_rule import own_rule

    asked = {(one.task_name, one.doc_id, one.idx): one for one in suite.instances}
    answers: dict[tuple[str, int], list[Answer]] = {}
    for answer in scores.answers:
        answers.setdefault(answer.key, []).append(answer)
    judged = {name: _by_document(task) for name, task in scores.tasks.items()}
    for question in questions:
        key = question.key
        task = suite.task(question.task)
        metric, chain = primary = task.primary
        found = judged[question.task].get(question.doc_id, [])
        own = next((sample for sample in found if sample["filter"] == chain), {})
        first = asked[(*key, min(answer.index for answer in answers[key]))]
        rule = own_rule(suite.loaded.tasks[question.task], first.doc)
        yield SampleRecord(
            mode=mode,
            task=question.task,
            doc_id=question.doc_id,
            doc_hash=question.doc_hash,
            prompt_hash=question.prompt_hash,
            target=own.get("target"),
            prompt=str(first.args[0]),
            answers=[_answer(asked[(*key, a.index)], a) for a in answers[key]],
            filtered={sample["filter"]: sample["filtered_resps"] for sample in found},
            metrics={
                f"{name},{sample['filter']}": sample[name]
                for sample in found
                for name in sample["metrics"]
            },
            primary=",".join(primary),
            value=_number(own.get(metric)) if task.averaged else None,
            higher_is_better=task.metrics.get(metric),
            own_rule=_rule(rule),
        )


def _rule(rule: OwnRule | None) -> OwnRuleRecord | None:
    if rule is None:
        return None
    return OwnRuleRecord(
        choice_lengths=list(rule.choice_lengths), right_choices=list(rule.right_choices)
    )


def _by_document(task: TaskScores) -> dict[int, list[dict[str, Any]]]:
    """lm-eval's samples of a task, one a filter, by document."""
    found: dict[int, list[dict[str, Any]]] = {}
    for sample in task.samples:
        found.setdefault(sample["doc_id"], []).append(sample)
    return found


def _answer(instance: Any, answer: Answer) -> AnswerRecord:
    scored = answer.kind != "generated"
    text, logprob, greedy = _response(instance, answer)
    return AnswerRecord(
        id=answer.id,
        kind=answer.kind,
        text=text,
        logprob=logprob,
        greedy=greedy,
        prompt_tokens=answer.prompt_tokens,
        pieces=[
            PieceRecord(
                tokens=list(piece.tokens),
                executed_depths=list(piece.executed_depths),
                requested_depths=list(piece.requested_depths),
                logprobs=list(piece.logprobs) if scored else [],
            )
            for piece in answer.pieces
        ],
        cut_tokens=answer.cut_tokens,
        empty_prompt=answer.empty_prompt,
        capped=answer.capped,
        error=answer.error,
    )


def _response(instance: Any, answer: Answer) -> tuple[str | None, float | None, bool | None]:
    """Text, logprob and whether it is greedy; of a rolled text the prompt is all there is."""
    match answer.response:
        case str() as text:
            return text, None, None
        case (logprob, greedy):
            return str(instance.args[1]), float(logprob), bool(greedy)
        case logprob:
            return None, float(logprob), None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
