"""``first_token: select``: what a rule picks afterwards is scored so, and saves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance

from cdbench.bench.accuracy import accuracy_of
from cdbench.bench.rederive import check
from cdbench.cli.main import main
from cdbench.evals.answers import Piece
from cdbench.evals.evaluate import answer_suite
from cdbench.evals.lm import EngineLM
from cdbench.evals.suite import Suite, load_suite
from cdbench.models.base import StagedModel
from cdbench.render.markdown import to_markdown
from cdbench.render.run_report import main_table
from cdbench.render.tasks_report import task_table
from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.engine_config import EngineConfig
from cdbench.schema import AnswerRecord, Result, read_result
from tests import tiny
from tests.evaluating import CHOICE, QUESTIONS, READ, WRITE, worded, write_task
from tests.pressure import LAYOUTS
from tests.reference import NEAR_TIE, continue_alone
from tests.test_accuracy import Passed, answer, sample
from tests.test_evaluated_run import LETTER

CASES: dict[str, tuple[Callable[[], StagedModel], ExitPolicy]] = {
    "gate": (tiny.ouro, ExitPolicy("cdf", 0.6)),
    "states": (tiny.ouro, ExitPolicy("latent-diff", 0.7)),
    "floor": (tiny.ouro, ExitPolicy("cdf", 0.3, min_loops=3)),
    "logits": (tiny.ouro, ExitPolicy("confidence", 0.3, min_loops=2)),
    "coda layers": (tiny.huginn, ExitPolicy("latent-diff", 0.9)),
    "coda layers and logits": (tiny.huginn, ExitPolicy("confidence", 0.25)),
    "halting": (tiny.universal, ExitPolicy("act", 0.7)),
    "lag": (tiny.ouro, ExitPolicy("cdf", 0.6, lag=1)),
}


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """Choices of one token and of several, texts, and whole texts."""
    directory = tmp_path_factory.mktemp("tasks")
    letters = [{**q, "choices": ["a", "b", "c"]} for q in QUESTIONS]
    write_task(directory, "letters", CHOICE, letters[:3])
    write_task(directory, "choose", CHOICE, QUESTIONS[:3])
    write_task(directory, "write", WRITE, QUESTIONS[:4])
    write_task(directory, "read", READ, QUESTIONS[:2])
    return load_suite([str(directory)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
def test_texts_and_likelihoods_are_the_reference_s(case: str, layout: str, suite: Suite) -> None:
    network, policy = CASES[case][0](), CASES[case][1]
    config = EngineConfig(
        max_residents=4,
        width=3,
        prefill_tokens=8,
        kv_layout=layout,
        first_token="select",
        prefix_cache=True,
    )
    lm = EngineLM(replace(worded(), network=network), config, policy)
    outputs = answer_suite(suite, lm)
    assert outputs is not None
    early = 0
    for one, (found,) in zip(suite.instances, outputs.answers, strict=True):
        (piece,) = found.pieces
        with torch.inference_mode():
            alone = continue_alone(network, asked_alone(lm, one, piece), layout, None, "select")
        assert list(piece.tokens) == alone.tokens or min(alone.margins) < NEAR_TIE
        assert list(piece.executed_depths) == alone.executed
        assert list(piece.requested_depths) == alone.requested
        assert list(piece.logprobs) == pytest.approx(alone.logprobs, abs=1e-9)
        early += bool(alone.requested) and alone.requested[0] < network.dims.max_loops
    assert early, "the rule must matter here"


def asked_alone(lm: EngineLM, one: Instance, piece: Piece) -> Request:
    """The same as a single request: what is scored is forced, what is generated is as long."""
    policy, stops = lm.point.policy, lm.point.model.stop_ids
    if one.request_type == "generate_until":
        most = len(piece.tokens) or 1
        prompt = lm.tok_encode(one.args[0])
        return Request("q", prompt, max_new_tokens=most, stop_ids=stops, exit=policy)
    whole = one.request_type == "loglikelihood_rolling"
    context = [lm.prefix_token_id] if whole else lm._encoded(*one.args)[0]
    return Request("q", context, force=list(piece.tokens), exit=policy)


def test_a_task_of_one_token_saves_nothing_and_is_counted_apart() -> None:
    """Picked loops are in no depth: nothing that ran was left out."""

    def picked(loop: int, *later: int) -> AnswerRecord:
        depths = [4, *later]
        one = answer(range(len(depths)), depths, kind="scored", logprob=-1.0)
        piece = one.pieces[0].model_copy(update={"requested_depths": [loop, *later]})
        return one.model_copy(update={"pieces": [piece]})

    passed = Passed(
        [
            sample("cdb", 0, 1, picked(1), picked(4)),
            sample("cdb", 1, 1, picked(3), picked(2)),
            sample("cdb", 2, 1, picked(2, 1, 3), task="long"),
        ]
    )
    found = accuracy_of({"cdb": passed})
    assert found is not None
    mode = found.modes["cdb"]
    task = mode.tasks["sums"]
    assert (task.adaptive, task.eligible_tokens, task.mean_depth) == (False, 0, None)
    assert (task.early_first_tokens, task.first_token_loop) == (3, 2.5)
    long = mode.tasks["long"]
    assert (long.adaptive, long.eligible_tokens, long.mean_depth) == (True, 2, 2.0)
    assert (mode.early_first_tokens, mode.adaptive) == (4, True)
    full = accuracy_of({"cdb": Passed([sample("cdb", 0, 1, picked(4))])})
    assert full is not None
    assert full.modes["cdb"].tasks["sums"].first_token_loop is None
    assert full.modes["cdb"].early_first_tokens == 0


@pytest.fixture(scope="module", params=["full", "select"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on choices of one token, as they are and with their loop picked."""
    directory = tmp_path_factory.mktemp("runs")
    lines = [
        f'{{"prompt": "sum m {n} ; i 1 ; :", "completion": "m + {n} = {n} ;", "answer": "{n}"}}'
        for n in range(4)
    ]
    (directory / "documents.jsonl").write_text("\n".join(lines) + "\n")
    (directory / "letter.yaml").write_text(LETTER)
    words = ["run", "--tasks", str(directory / "letter.yaml"), "--work", "live", "--device", "cpu"]
    words += ["--modes", "static,cdb", "--exit", "cdf@0.3", "--json"]
    out = directory / request.param
    assert main([*words, "--set", f"first_token={request.param}", "--out", str(out)]) == 0
    return out


def test_a_run_says_what_was_picked_and_that_nothing_was_saved(run: Path) -> None:
    result: Result = read_result(run)
    select = run.name == "select"
    assert result.accuracy is not None
    task = result.accuracy.modes["cdb"].tasks["letter"]
    assert (task.adaptive, task.mean_depth, task.eligible_tokens) == (False, None, 0)
    assert (task.early_first_tokens > 0) is select
    assert result.accuracy.modes["static"].early_first_tokens == 0
    cdb = result.modes["cdb"]
    assert cdb.live["scored_mean_depth"] is None
    assert cdb.live["scored_tokens"] == 4 * 4
    shown = to_markdown(task_table(result))
    assert ("read at" in shown) is select
    assert ("adaptive accuracy, no compute saved" in shown) is select
    # Static is read at full depth either way.
    assert "not adaptive" in shown
    assert "first_token: select" in shown.replace("\n", " ")
    (cdb_row,) = [row for row in main_table(result).rows if row.cells[0].value == "cdb"]
    verdict = str(cdb_row.cells[-1].value)
    assert verdict.endswith("(no loop saved)" if select else "(not adaptive)")
    assert check(run) == []
