"""Whether a stored sample agrees with itself: its value, its metrics and its logprobs.

What a metric follows from is made again wherever the sample has it: a value from its metric, a
continuation's logprob from those of its tokens, and the metrics of a question that lm-eval's own
rule judges from the logprobs of its answers. What a text is read as takes the task's filters, and
stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from cdbench.schema import AnswerRecord, RequestRecord, SampleRecord

REL_TOL = 1e-9
"""Sums of logprobs are stored as they were made; another order of adding moves last digits."""
PERPLEXITIES = ("word_perplexity", "byte_perplexity", "bits_per_byte")


def contradictions(sample: SampleRecord) -> Iterator[str]:
    """What does not follow from what, one sentence each."""
    said = sample.metrics.get(sample.primary)
    if sample.value is not None and sample.value != said:
        yield f"value {sample.value} beside {sample.primary} {said}"
    for answer in sample.answers:
        yield from _answer(answer)
    if sample.own_rule is None or any(_unscored(answer) for answer in sample.answers):
        return
    for name, value in sample.metrics.items():
        made = _MADE.get(name.partition(",")[0], _nothing)(sample)
        if made is not None and made != value:
            yield f"{name} {value} beside logprobs that give {made}"


def unlike_requests(
    samples: Sequence[SampleRecord], requests: Sequence[RequestRecord]
) -> Iterator[str]:
    """Texts whose tokens or depths are not those of the request that generated them."""
    generated = {request.id: request for request in requests}
    for sample in samples:
        for answer in sample.answers:
            if answer.kind != "generated" or answer.error is not None:
                continue
            request = generated.get(answer.id)
            if request is None:
                yield f"text {answer.id} has no request line"
            elif request.tokens != answer.tokens:
                yield f"text {answer.id} has other tokens than its request line"
            elif request.executed_depths != [d for p in answer.pieces for d in p.executed_depths]:
                yield f"text {answer.id} has other depths than its request line"


def _answer(answer: AnswerRecord) -> Iterator[str]:
    for piece in answer.pieces:
        sizes = {len(piece.tokens), len(piece.executed_depths), len(piece.requested_depths)}
        if answer.kind != "generated":
            sizes.add(len(piece.logprobs))
        if len(sizes) > 1:
            yield f"answer {answer.id}: not every token has its depths and logprob"
            return
    if answer.kind == "generated" or answer.logprob is None or answer.error is not None:
        return
    summed = math.fsum(value for piece in answer.pieces for value in piece.logprobs)
    if not math.isclose(summed, answer.logprob, rel_tol=REL_TOL, abs_tol=REL_TOL):
        yield f"answer {answer.id}: logprob {answer.logprob} beside tokens that sum to {summed}"


def _unscored(answer: AnswerRecord) -> bool:
    return answer.logprob is None or answer.error is not None


def _nothing(sample: SampleRecord) -> None:
    return None


def _logprobs(sample: SampleRecord) -> list[float]:
    """Those of the choices, each below what comes before it; what is asked without is left out."""
    rule = sample.own_rule
    assert rule is not None, "only such samples are judged again"
    found = [answer.logprob for answer in sample.answers if answer.logprob is not None]
    return found[: len(rule.choice_lengths)]


def _right(sample: SampleRecord, scores: Sequence[float]) -> float | None:
    """1 where the best of the choices is right; of equals the first counts, as in lm-eval."""
    if sample.own_rule is None or not scores:
        return None
    best = max(range(len(scores)), key=lambda i: scores[i])
    return float(best in sample.own_rule.right_choices)


def _acc(sample: SampleRecord) -> float | None:
    if sample.own_rule is not None and not sample.own_rule.choice_lengths:
        greedy = sample.answers[0].greedy
        return None if greedy is None else float(greedy)
    return _right(sample, _logprobs(sample))


def _acc_norm(sample: SampleRecord) -> float | None:
    lengths = sample.own_rule.choice_lengths if sample.own_rule is not None else []
    if not lengths or 0 in lengths:
        return None
    return _right(sample, [x / n for x, n in zip(_logprobs(sample), lengths, strict=False)])


def _mutual(sample: SampleRecord) -> float | None:
    if sample.own_rule is None or len(sample.own_rule.right_choices) > 1:
        return None  # lm-eval holds the best against a list there
    choices = _logprobs(sample)
    alone = [a.logprob for a in sample.answers[len(choices) :] if a.logprob is not None]
    if not choices or len(alone) != len(choices):
        return None
    return _right(sample, [x - y for x, y in zip(choices, alone, strict=True)])


def _perplexity(sample: SampleRecord) -> float | None:
    one = sample.answers[0]
    return one.logprob if one.kind == "scored" and len(sample.answers) == 1 else None


def _rolled(name: str) -> Callable[[SampleRecord], object]:
    """A logprob beside a count of words or bytes, of which only the first can be made again."""

    def made(sample: SampleRecord) -> object:
        kept = next((v for key, v in sample.metrics.items() if key.partition(",")[0] == name), None)
        if not isinstance(kept, list) or len(kept) != 2 or sample.answers[0].kind != "rolled":
            return None
        return [sample.answers[0].logprob, kept[1]]

    return made


_MADE: dict[str, Callable[[SampleRecord], object]] = {
    "acc": _acc,
    "acc_norm": _acc_norm,
    "acc_mutual_info": _mutual,
    "perplexity": _perplexity,
    **{name: _rolled(name) for name in PERPLEXITIES},
}
