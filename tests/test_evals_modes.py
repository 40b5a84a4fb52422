"""Evaluations on looped models: the same questions in every mode, every token accounted for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdbench.errors import InvalidRunError, UsageError
from cdbench.evals.evaluate import answer_suite, evaluate_suite, score_suite
from cdbench.evals.lm import EngineLM
from cdbench.evals.options import SuiteOptions
from cdbench.evals.ranks import Ranks
from cdbench.evals.scores import SuiteScores
from cdbench.evals.suite import Suite, load_suite
from cdbench.runtime.core import ExitPolicy
from cdbench.runtime.engine_config import EngineConfig
from tests.evaluating import CHOICE, QUESTIONS, READ, WRITE, request, worded, write_task

RULE = ExitPolicy("cdf", 0.7)


def model(mode: str = "cdb", policy: ExitPolicy = RULE, **changes: Any) -> EngineLM:
    config = replace(EngineConfig(mode=mode, max_residents=4, width=3, prefill_tokens=8), **changes)
    return EngineLM(worded(), config, policy)


def scored(suite: Suite, lm: EngineLM) -> SuiteScores:
    scores = evaluate_suite(suite, lm)
    assert scores is not None
    return scores


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """All three kinds of task, in a group."""
    directory = tmp_path_factory.mktemp("tasks")
    for name, settings in (("choose", CHOICE), ("write", WRITE), ("read", READ)):
        write_task(directory, name, settings)
    (directory / "all.yaml").write_text(
        "group: all\ntask: [choose, write, read]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    return load_suite([str(directory)])


def test_every_mode_answers_the_same_questions(suite: Suite) -> None:
    asked = [(one.task_name, one.doc_id, one.args) for one in suite.instances]
    scores = [scored(suite, model(mode)) for mode in ("static", "static@2", "lockstep", "cdb")]
    assert {score.hash for score in scores} == {suite.hash}
    assert [(one.task_name, one.doc_id, one.args) for one in suite.instances] == asked
    hashes = [
        {name: [s["prompt_hash"] for s in task.samples] for name, task in score.tasks.items()}
        for score in scores
    ]
    assert all(other == hashes[0] for other in hashes)
    # They are those of the questions, which paired comparisons join on.
    for name, found in hashes[0].items():
        assert found == [q.prompt_hash for q in suite.questions if q.task == name]


def test_a_second_evaluation_is_the_first_again(suite: Suite) -> None:
    lm = model()
    first, second = scored(suite, lm), scored(suite, lm)
    assert first.tasks == second.tasks
    assert [a.response for a in first.answers] == [a.response for a in second.answers]


def test_no_schedule_changes_an_answer(suite: Suite) -> None:
    alike = [
        model("cdb"),
        model("lockstep"),
        model("cdb", width=1),
        model("cdb", max_residents=1, prefill_tokens=3),
        model("cdb", prefix_cache=True),
    ]
    scores = [scored(suite, lm) for lm in alike]
    for other in scores[1:]:
        for a, b in zip(scores[0].answers, other.answers, strict=True):
            assert a.response == pytest.approx(b.response, abs=1e-9)
            assert [p.executed_depths for p in a.pieces] == [p.executed_depths for p in b.pieces]
        for name, task in scores[0].tasks.items():
            mine, theirs = task.metrics[0], other.tasks[name].metrics[0]
            assert mine.aggregate == pytest.approx(theirs.aggregate, rel=1e-9)
            assert list(mine.values) == list(theirs.values)


def test_scores_are_per_document_and_add_up(suite: Suite) -> None:
    scores = scored(suite, model())
    choose, write, read = (scores.tasks[name] for name in ("choose", "write", "read"))
    for task in (choose, write):
        for metric in task.metrics:
            values = list(metric.values.values())
            assert list(metric.values) == list(range(len(QUESTIONS)))
            assert metric.aggregate == pytest.approx(sum(values) / len(values))
            assert metric.stderr is not None
    assert [m.metric for m in choose.metrics] == ["acc_norm", "acc"]
    assert read.primary is not None
    assert (read.primary.metric, read.primary.stderr) == ("word_perplexity", None)
    assert read.primary.higher_is_better is False
    logprobs = [answer.response for answer in scores.answers if answer.task == "read"]
    assert [value[0] for value in read.primary.values.values()] == logprobs
    # The group has what its members have, weighted by documents.
    (combined,) = scores.groups["all"].metrics
    assert combined.aggregate == pytest.approx(choose.metrics[1].aggregate)
    assert (combined.metric, combined.weights) == ("acc", {"choose": 1.0})
    assert scores.groups["all"].tasks == ("choose", "write", "read")


def test_every_token_is_accounted_for(suite: Suite) -> None:
    lm = model()
    scores = scored(suite, lm)
    loops = lm.point.model.network.dims.max_loops
    depths = set()
    for answer in scores.answers:
        assert (answer.kind == "generated") == (answer.result is not None)
        for piece in answer.pieces:
            assert len(piece.executed_depths) == len(piece.tokens) == len(piece.logprobs)
            assert piece.executed_depths[:1] in ([], [loops])
            depths |= set(piece.executed_depths[1:])
        if answer.kind != "generated":
            (piece,) = answer.pieces
            assert len(piece.greedy) == len(piece.tokens)
    assert len(depths) > 1, "the rule must matter here"
    for name, task in scores.tasks.items():
        own = [piece for a in scores.answers if a.task == name for piece in a.pieces]
        assert task.tokens == sum(len(piece.tokens) for piece in own)
        assert task.later_tokens == sum(max(0, len(piece.tokens) - 1) for piece in own)
    assert len(scores.answers_of("choose", 0)) == len(QUESTIONS[0]["choices"])


def test_samples_are_json_and_know_their_filter(suite: Suite) -> None:
    scores = scored(suite, model())
    for name, task in scores.tasks.items():
        assert json.loads(json.dumps(task.samples)) == list(task.samples)
        filters = suite.task(name).filters
        assert [(s["filter"], s["doc_id"]) for s in task.samples] == [
            (chain, q.doc_id) for chain in filters for q in suite.questions if q.task == name
        ]


def test_one_token_continuations_are_not_adaptive(tmp_path: Path) -> None:
    letters = [{**q, "choices": ["a", "b", "c"]} for q in QUESTIONS]
    path = write_task(tmp_path, "letters", CHOICE, letters)
    task = scored(load_suite([str(path)]), model()).tasks["letters"]
    assert (task.adaptive, task.later_tokens) == (False, 0)
    assert task.tokens == 3 * len(letters)


def test_an_empty_text_has_no_score_rather_than_a_perfect_one(tmp_path: Path) -> None:
    texts = [*QUESTIONS[:3], {**QUESTIONS[3], "text": ""}]
    path = write_task(tmp_path, "read", READ, texts)
    suite = load_suite([str(path)])
    assert any("1 documents have an empty text" in note for note in suite.notes)
    scores = scored(suite, model())
    task = scores.tasks["read"]
    assert task.failed == (3,)
    assert task.primary is not None
    assert list(task.primary.values) == [0, 1, 2]
    assert scores.answers[3].error == "the text is empty: nothing to score"
    whole = scored(load_suite([str(path)], SuiteOptions(limit=3)), model()).tasks["read"]
    assert whole.primary == task.primary
    # The suite is not spoiled for the next mode, and a task may lose every document.
    again = scored(suite, model()).tasks["read"]
    assert again == task
    alone = load_suite([str(path)], SuiteOptions(samples={"read": [3]}))
    empty = scored(alone, model()).tasks["read"]
    assert (empty.failed, empty.metrics, empty.primary) == ((3,), (), None)


def test_an_empty_continuation_leaves_its_document_out(tmp_path: Path) -> None:
    broken = [{**QUESTIONS[i], "choices": [" a", "" if i == 2 else " d", " b"]} for i in range(3)]
    path = write_task(tmp_path, "choose", CHOICE, broken, target_delimiter="")
    scores = scored(load_suite([str(path)]), model())
    assert scores.tasks["choose"].failed == (2,)
    assert all(list(m.values) == [0, 1] for m in scores.tasks["choose"].metrics)
    assert [a.error for a in scores.answers if a.error] == [
        "the continuation is empty: nothing to score"
    ]


def test_a_refused_text_counts_as_wrong_and_is_said(tmp_path: Path) -> None:
    long = {**QUESTIONS[0], "question": "a b c d " * 12}
    path = write_task(tmp_path, "write", WRITE, [long, *QUESTIONS[1:4]])
    suite = load_suite([str(path)])
    lm = model(kv_budget_bytes=worded_bytes(positions=20))
    scores = scored(suite, lm)
    task = scores.tasks["write"]
    assert task.failed == (0,)
    assert task.primary is not None
    assert task.primary.values[0] == 0.0
    assert "raise the KV budget" in str(scores.answers[0].error)
    assert scores.answers[0].flags == ("error",)
    assert task.samples[0]["filtered_resps"] == ["[invalid]"]


def worded_bytes(positions: int) -> int:
    from cdbench.runtime.cache_shape import cache_shape

    network = worded().network
    shape = cache_shape(network.dims, "per-loop", network.dims.max_loops, network.dtype)
    return shape.budget_for(positions)


def test_prompts_that_are_too_long_are_cut_on_the_left_and_flagged() -> None:
    lm = model("static")
    words = "a b c d e f g " * 12
    prompt = request("generate_until", words, {"max_gen_toks": 4, "until": []})
    lm.generate_until([prompt])
    (answer,) = lm.answers
    assert (answer.prompt_tokens, answer.cut_tokens) == (60, 84 - 60)
    assert {"cut", "capped"} >= set(answer.flags) >= {"cut"}
    kept = " ".join(words.split()[-60:])
    again = model("static")
    again.generate_until([request("generate_until", kept, {"max_gen_toks": 4, "until": []})])
    assert again.answers[0].response == answer.response
    assert again.answers[0].cut_tokens == 0
    with pytest.raises(UsageError, match="leaves no room for a prompt"):
        lm.generate_until([request("generate_until", "a", {"max_gen_toks": 64})])


def test_an_empty_prompt_follows_the_prefix_token_and_is_flagged() -> None:
    lm = model("static")
    lm.generate_until([request("generate_until", "", {"max_gen_toks": 2})])
    assert "empty prompt" in lm.answers[0].flags
    bare = EngineLM(replace(worded(), stop_ids=frozenset()), EngineConfig(mode="static"))
    with pytest.raises(UsageError, match="has no BOS or EOS token"):
        bare.loglikelihood([request("loglikelihood", "", "a")])
    with pytest.raises(UsageError, match=r"has no tokenizer\.json"):
        EngineLM(replace(worded(), tokenizer=None), EngineConfig())


def test_repeats_are_drawn_apart_and_again_the_same(tmp_path: Path) -> None:
    sampled = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 2.0}
    path = write_task(tmp_path, "write", WRITE, generation_kwargs=sampled, repeats=3)
    suite = load_suite([str(path)])
    first = answer_suite(suite, model())
    second = answer_suite(suite, model(width=1, max_residents=2))
    assert first is not None
    assert second is not None
    texts = [[answer.response for answer in repeats] for repeats in first.answers]
    assert all(len(repeats) == 3 for repeats in texts)
    assert all(len(set(repeats)) > 1 for repeats in texts)
    assert texts == [[answer.response for answer in repeats] for repeats in second.answers]
    other = EngineLM(worded(), EngineConfig(), RULE, seed=1)
    third = answer_suite(suite, other)
    assert third is not None
    assert texts != [[answer.response for answer in repeats] for repeats in third.answers]
    assert score_suite(suite, first).tasks == score_suite(suite, second).tasks


def test_stops_end_a_text_and_special_ones_are_tokens() -> None:
    kwargs = {"max_gen_toks": 20, "until": []}
    lm = model("static")
    (whole,) = lm.generate_until([request("generate_until", "a b", kwargs)])
    words = whole.split()
    assert len(words) > 4
    stop = " ".join(words[2:4])
    (cut,) = lm.generate_until([request("generate_until", "a b", {**kwargs, "until": [stop]})])
    assert cut == whole[: whole.index(stop)]
    assert lm.answers[-1].result is not None
    assert not lm.answers[-1].capped
    (same,) = lm.generate_until([request("generate_until", "a b", {**kwargs, "until": "<eos>"})])
    assert same == whole


def test_ranks_share_documents_and_nothing_is_lost(suite: Suite) -> None:
    """Each rank's part, gathered by hand: the whole, whatever the number of ranks."""
    alone = answer_suite(suite, model())
    assert alone is not None

    class Gathering(Ranks):
        """Ranks one after the other in one process; the last one finds what all have given."""

        def gather_object(self, obj: Any, dst: int = 0) -> list[Any] | None:
            parts.append(obj)
            return parts if self.rank == self.world_size - 1 else None

    for size in (2, 3, 9):
        parts: list[Any] = []
        for rank in range(size):
            lm = model()
            lm.ranks = Gathering(rank, size)
            gathered = answer_suite(suite, lm)
        assert gathered is not None
        parts[0] = ("another", parts[0][1])
        with pytest.raises(InvalidRunError, match="built different requests"):
            answer_suite(suite, lm)
        for one, other in zip(alone.flat, gathered.flat, strict=True):
            assert (one.task, one.doc_id, one.index) == (other.task, other.doc_id, other.index)
            assert one.response == pytest.approx(other.response, abs=1e-9)
        assert len(parts) == size + 1
        whole, shared = score_suite(suite, alone).tasks, score_suite(suite, gathered).tasks
        for name in ("choose", "write"):
            assert whole[name].metrics == shared[name].metrics
        assert [m.aggregate for m in whole["read"].metrics] == pytest.approx(
            [m.aggregate for m in shared["read"].metrics], rel=1e-9
        )
