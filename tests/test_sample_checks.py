"""A stored sample that disagrees with itself, or with the request that made it, is named."""

from __future__ import annotations

import pytest

from cdbench.bench.sample_checks import contradictions, unlike_requests
from cdbench.schema import AnswerRecord, PieceRecord, RequestRecord, SampleRecord

LOGPROBS = ((-1.0, -2.0), (-0.5, -2.4), (-9.0,))
"""Of three choices: the second is the likeliest; by length the first."""
TEXTS = (" a long one", " b", " c")
LENGTHS = [10, 1, 1]


def scored(number: int, logprobs: tuple[float, ...], **changes: object) -> AnswerRecord:
    count = len(logprobs)
    piece = {
        "tokens": list(range(count)),
        "executed_depths": [4] * count,
        "requested_depths": [4] * count,
        "logprobs": list(logprobs),
    }
    known = {
        "id": f"t/0/{number}/0",
        "kind": "scored",
        "text": TEXTS[number % 3],
        "logprob": sum(logprobs),
        "greedy": False,
        "prompt_tokens": 3,
        "pieces": [piece],
    }
    return AnswerRecord.model_validate({**known, **changes})


def question(answers: list[AnswerRecord] | None = None, **changes: object) -> SampleRecord:
    """A choice question whose second choice is right: likeliest, but not by length."""
    known = {
        "mode": "cdb",
        "task": "t",
        "doc_id": 0,
        "doc_hash": "d",
        "prompt_hash": "p",
        "prompt": "which?",
        "answers": answers or [scored(i, each) for i, each in enumerate(LOGPROBS)],
        "metrics": {"acc,none": 1.0, "acc_norm,none": 0.0},
        "primary": "acc_norm,none",
        "value": 0.0,
        "own_rule": {"choice_lengths": LENGTHS, "right_choices": [1]},
    }
    return SampleRecord.model_validate({**known, **changes})


def found(sample: SampleRecord) -> str:
    return "; ".join(contradictions(sample))


def test_a_question_as_it_was_judged_agrees() -> None:
    assert found(question()) == ""
    assert found(question(own_rule=None, metrics={"acc,none": 0.3, "acc_norm,none": 0.0})) == ""


def test_a_value_is_its_metric() -> None:
    assert found(question(value=1.0, own_rule=None)) == "value 1.0 beside acc_norm,none 0.0"


@pytest.mark.parametrize("metric", ["acc,none", "acc_norm,none"])
def test_a_choice_is_judged_by_its_logprobs(metric: str) -> None:
    metrics = {**question().metrics}
    metrics[metric] = 1.0 - float(str(metrics[metric]))
    wrong = question(metrics=metrics, value=metrics["acc_norm,none"])
    assert f"{metric} {metrics[metric]} beside logprobs that give" in found(wrong)


def test_the_first_of_equally_likely_choices_counts() -> None:
    same = [scored(i, (-1.0,)) for i in range(3)]
    assert "acc,none 1.0 beside logprobs that give 0.0" in found(question(same))
    first = {"choice_lengths": LENGTHS, "right_choices": [0]}
    assert "acc,none" not in found(question(same, own_rule=first))


def test_choices_asked_without_their_prompt_are_subtracted() -> None:
    alone = [scored(i, (value,)) for i, value in ((3, -0.1), (4, -5.0), (5, -9.5))]
    both = [*(scored(i, each) for i, each in enumerate(LOGPROBS)), *alone]
    metrics = {**question().metrics, "acc_mutual_info,none": 1.0}
    assert found(question(both, metrics=metrics)) == ""
    metrics["acc_mutual_info,none"] = 0.0
    assert "acc_mutual_info,none 0.0 beside logprobs that give 1.0" in found(
        question(both, metrics=metrics)
    )


def test_a_logprob_is_the_sum_of_its_tokens() -> None:
    answers = [scored(0, LOGPROBS[0], logprob=-3.1), *question().answers[1:]]
    said = found(question(answers))
    assert said == "answer t/0/0/0: logprob -3.1 beside tokens that sum to -3.0"
    long = scored(0, (-0.1,) * 1000)
    assert found(question([long], own_rule=None)) == "", "rounding of a long sum is no fault"


def test_lists_that_do_not_align_are_named() -> None:
    short = scored(0, (-1.0, -2.0)).model_dump()
    for name in ("executed_depths", "requested_depths", "logprobs"):
        piece = {**short["pieces"][0], name: []}
        answer = AnswerRecord.model_validate({**short, "pieces": [piece]})
        assert "not every token has its depths" in found(question([answer], own_rule=None))


def test_what_failed_is_not_judged() -> None:
    lost = scored(1, (), logprob=None, error="too long", pieces=[])
    answers = [question().answers[0], lost, question().answers[2]]
    assert found(question(answers, value=None, metrics={"acc,none": 0.0})) == ""


def test_a_single_continuation_is_judged_by_whether_it_is_greedy() -> None:
    one = [scored(0, (-1.5,), greedy=True)]
    kept: dict[str, object] = {"own_rule": {}, "primary": "acc,none", "value": 1.0}
    metrics = {"acc,none": 1.0, "perplexity,none": -1.5}
    assert found(question(one, metrics=metrics, **kept)) == ""
    said = found(question(one, metrics={**metrics, "perplexity,none": -2.5}, **kept))
    assert said == "perplexity,none -2.5 beside logprobs that give -1.5"
    cold = [scored(0, (-1.5,))]
    assert "acc,none 1.0 beside logprobs that give 0.0" in found(
        question(cold, metrics=metrics, **kept)
    )


def test_a_perplexity_keeps_the_logprob_of_its_text() -> None:
    text = [scored(0, (-1.5, -2.0), kind="rolled", text=None)]
    kept: dict[str, object] = {"own_rule": {}, "primary": "word_perplexity,none", "value": None}
    assert found(question(text, metrics={"word_perplexity,none": [-3.5, 4]}, **kept)) == ""
    said = found(question(text, metrics={"word_perplexity,none": [-3.6, 4]}, **kept))
    assert "word_perplexity,none" in said


def test_texts_are_those_of_their_requests() -> None:
    piece = PieceRecord(tokens=[1, 2], executed_depths=[4, 1], requested_depths=[4, 1])
    text = AnswerRecord(id="t/0", kind="generated", text="", prompt_tokens=3, pieces=[piece])
    sample = question([text], own_rule=None, metrics={}, value=None)
    line = {
        **{name: None for name in ("block", "admitted_s", "stop_depth", "error")},
        **{"id": "t/0", "task": "t", "doc_id": 0, "mode": "cdb", "work": "live"},
        **{"prompt_tokens": 3, "arrival_s": 0, "token_s": [1, 2], "finish_s": 2},
        **{"tokens": [1, 2], "requested_depths": [4, 1], "executed_depths": [4, 1]},
        "finish_reason": "stop",
    }
    request = RequestRecord.model_validate(line)
    assert list(unlike_requests([sample], [request])) == []
    other = request.model_copy(update={"tokens": [1, 3]})
    assert "other tokens" in next(unlike_requests([sample], [other]))
    deeper = request.model_copy(update={"executed_depths": [4, 2]})
    assert "other depths" in next(unlike_requests([sample], [deeper]))
    assert "no request line" in next(unlike_requests([sample], []))
