"""Accuracy from samples alone: rates, paired differences, agreement of texts, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdbench.bench.accuracy import accuracy_of, right_or_wrong, sample_files
from cdbench.metrics.trace import RequestTrace
from cdbench.schema import AnswerRecord, PieceRecord, SampleRecord, samples_file
from cdbench.stats.agreement import common_prefix, compare_texts


@dataclass(frozen=True)
class Passed:
    samples: Sequence[SampleRecord]
    results: Sequence[RequestTrace] = ()
    prefix_hit_rate: float | None = None
    preemptions: int = 0


def answer(
    tokens: Sequence[int], depths: Sequence[int], kind: str = "generated", **changes: object
) -> AnswerRecord:
    piece = PieceRecord(
        tokens=list(tokens), executed_depths=list(depths), requested_depths=list(depths)
    )
    return AnswerRecord.model_validate(
        {"id": "q", "kind": kind, "text": "", "prompt_tokens": 3, "pieces": [piece], **changes}
    )


def sample(
    mode: str,
    doc_id: int,
    value: float | None,
    *answers: AnswerRecord,
    task: str = "sums",
    filtered: object = "7",
) -> SampleRecord:
    return SampleRecord(
        mode=mode,
        task=task,
        doc_id=doc_id,
        doc_hash="d",
        prompt_hash="p",
        prompt="1 + 1 =",
        answers=list(answers) or [answer([1, 2], [4, 4])],
        filtered={"last": [filtered]},
        metrics={"exact_match,last": value},
        primary="exact_match,last",
        value=value,
    )


def test_rates_and_paired_differences_are_over_the_shared_questions() -> None:
    static = [sample("static", i, v) for i, v in enumerate((1, 1, 0, 1))]
    cdb = [sample("cdb", i, v) for i, v in ((0, 1), (1, 0), (2, 1), (9, 1))]
    found = accuracy_of({"static": Passed(static), "cdb": Passed(cdb)}, "hash")
    assert found is not None
    assert (found.baseline, found.questions) == ("static", "hash")
    ours = found.modes["cdb"]
    assert ours.rate is not None
    assert (ours.rate.estimate, ours.rate.n) == (0.75, 4)
    assert ours.paired is not None
    assert (ours.paired.n, ours.paired.lost, ours.paired.gained) == (3, 1, 1)
    assert ours.paired.verdict == "cannot tell"
    assert found.modes["static"].paired is None
    task = ours.tasks["sums"]
    assert (task.metric, task.filter) == ("exact_match", "last")
    assert task.paired == ours.paired


def test_values_that_are_not_right_or_wrong_get_a_mean_and_no_verdict() -> None:
    base = [sample("static", i, 0.5) for i in range(6)] + [sample("static", 6, 1, task="b")]
    ours = [sample("cdb", i, 0.25 + i / 100) for i in range(6)] + [sample("cdb", 6, 1, task="b")]
    found = accuracy_of({"static": Passed(base), "cdb": Passed(ours)})
    assert found is not None
    mode = found.modes["cdb"]
    assert mode.rate is not None
    assert mode.rate.n == 1, "only task b is right or wrong"
    task = mode.tasks["sums"]
    assert task.rate is not None
    assert task.rate.estimate == pytest.approx(0.275)
    assert task.paired is None
    assert task.difference is not None
    assert task.difference.estimate == pytest.approx(-0.225)
    assert task.difference.high is not None
    assert task.difference.high < 0
    assert right_or_wrong(ours) == [True]


def test_where_lower_is_better_nothing_is_right() -> None:
    worse = [
        s.model_copy(update={"higher_is_better": False})
        for s in (sample("cdb", i, 1) for i in range(6))
    ]
    found = accuracy_of({"cdb": Passed(worse)})
    assert found is not None
    assert found.modes["cdb"].rate is None
    assert found.modes["cdb"].tasks["sums"].rate is not None
    assert right_or_wrong(worse) == []


def test_a_task_without_numbers_has_no_rate_and_nothing_is_zero() -> None:
    found = accuracy_of({"cdb": Passed([sample("cdb", i, None) for i in range(3)])})
    assert found is not None
    mode = found.modes["cdb"]
    assert found.baseline is None
    assert (mode.rate, mode.by_task, mode.paired) == (None, {}, None)
    assert mode.tasks["sums"].rate is None
    assert accuracy_of({}) is None


def test_generated_and_scored_tokens_are_told_apart() -> None:
    both = sample(
        "cdb",
        0,
        1,
        answer([5, 6, 7], [4, 1, 2]),
        answer([8, 9], [4, 3], kind="scored", logprob=-1.0, greedy=True),
        answer([8], [4], kind="scored", logprob=-2.0, greedy=False),
    )
    assert both.later_depths("generated") == [1, 2]
    assert both.later_depths("scored") == [3]
    assert both.scored_tokens == 3
    found = accuracy_of({"cdb": Passed([both])})
    assert found is not None
    task = found.modes["cdb"].tasks["sums"]
    assert (task.eligible_tokens, task.scored_tokens, task.mean_depth) == (3, 3, 2.0)
    single = accuracy_of({"cdb": Passed([sample("cdb", 0, 1, answer([8], [4], kind="scored"))])})
    assert single is not None
    assert not single.modes["cdb"].tasks["sums"].adaptive
    assert single.modes["cdb"].tasks["sums"].mean_depth is None


def test_what_a_reader_must_know_of_the_texts_is_counted() -> None:
    samples = [
        sample("cdb", 0, 0, answer([1], [4], capped=True), filtered="[invalid]"),
        sample("cdb", 1, 0, answer([1], [4], cut_tokens=3)),
        sample("cdb", 2, None, answer([], [], error="needs too much")),
        sample("cdb", 3, 1),
    ]
    found = accuracy_of({"cdb": Passed(samples)})
    assert found is not None
    task = found.modes["cdb"].tasks["sums"]
    assert (task.capped, task.unparseable, task.cut, task.failed) == (1, 1, 1, 1)
    assert task.rate is not None
    assert task.rate.n == 3, "what failed has no value"


def test_texts_are_compared_up_to_where_they_part() -> None:
    pairs = [([1, 2, 3], [1, 2, 3]), ([1, 2, 3, 4], [1, 9, 3, 4]), ([1, 2], [1, 2, 3, 4])]
    found = compare_texts(pairs)
    assert found is not None
    assert (found.n, found.identical) == (3, 1)
    assert found.token_agreement == pytest.approx((3 + 1 + 2) / (3 + 4 + 4))
    assert found.first_divergence == 1.5  # at tokens 1 and 2
    assert found.length_ratio == pytest.approx(11 / 9)
    assert compare_texts([]) is None


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_a_common_prefix_is_shared_and_as_long_as_can_be(one: list[int], other: list[int]) -> None:
    at = common_prefix(one, other)
    assert one[:at] == other[:at]
    assert at == min(len(one), len(other)) or one[at] != other[at]
    assert at == common_prefix(other, one)


def test_dense_texts_of_another_vocabulary_are_not_compared() -> None:
    static = [sample("static", 0, 1, answer([1, 2], [4, 4]))]
    dense = [sample("dense:small", 0, 1, answer([1, 2], [1, 1]))]
    cdb = [sample("cdb", 0, 1, answer([1, 3], [4, 1]))]
    found = accuracy_of(
        {"static": Passed(static), "dense:small": Passed(dense), "cdb": Passed(cdb)}
    )
    assert found is not None
    assert found.modes["dense:small"].tasks["sums"].agreement is None
    assert found.modes["static"].tasks["sums"].agreement is None
    agreement = found.modes["cdb"].tasks["sums"].agreement
    assert agreement is not None
    assert (agreement.over, agreement.n, agreement.identical) == ("static", 1, 0)


def test_a_task_named_by_a_path_has_a_file_that_can_be_written() -> None:
    assert samples_file("mmlu") == "samples_mmlu.jsonl"
    assert samples_file("/a b/c.yaml").startswith("samples_a-b-c.yaml-")
    assert samples_file("x/y") != samples_file("x-y") == "samples_x-y.jsonl"
    assert samples_file("ü") != samples_file("é")
    assert sample_files({"cdb": Passed([sample("cdb", 0, 1)])}) == {"sums": "samples_sums.jsonl"}
