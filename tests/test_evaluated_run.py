"""Runs that ask questions: texts and likelihoods in every mode, stored, rechecked and shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdbench.bench.rederive import check
from cdbench.bench.stored_samples import StoredSamples
from cdbench.cli.main import main
from cdbench.render.tasks_report import task_table
from cdbench.schema import Result, SampleRecord, read_result, read_samples

CHOOSE = """
task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{prompt}} {{completion.split(' answer ')[0]}}"
doc_to_target: "{{answer | int}}"
doc_to_choice: ["answer : 0 .", "answer : 1 .", "answer : 2 .", "answer : 3 ."]
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
LETTER = CHOOSE.replace("task: choose", "task: letter").replace("answer : ", "").replace(" .", "")
READ = """
task: read
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{prompt}} {{completion}}"
metric_list: [{metric: word_perplexity}]
"""
DOCUMENTS = 4


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks")
    lines = [
        json.dumps(
            {
                "prompt": f"sum m {n} ; i 1 ; :",
                "completion": f"m + {n} = {n} ; i + 1 = {n + 1} ; answer : {n + 1} .",
                "answer": str(n % DOCUMENTS),
            }
        )
        for n in range(DOCUMENTS)
    ]
    (path / "documents.jsonl").write_text("\n".join(lines) + "\n")
    for name, text in (("choose", CHOOSE), ("letter", LETTER), ("read", READ)):
        (path / f"{name}.yaml").write_text(text)
    return path


@pytest.fixture(scope="module")
def directory(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "asked"
    named = ",".join(
        ["demo_add", *(str(tasks / f"{n}.yaml") for n in ("choose", "letter", "read"))]
    )
    modes = "dense:demo-dense,static,static@auto,cdb"
    work = ["--tasks", named, "--limit", str(DOCUMENTS), "--work", "live", "--device", "cpu"]
    code = main(["run", *work, "--modes", modes, "--out", str(out), "--json"])
    assert code == 0
    return out


@pytest.fixture(scope="module")
def result(directory: Path) -> Result:
    return read_result(directory)


def samples(directory: Path, task: str) -> list[SampleRecord]:
    return list(read_samples(directory / f"samples_{task}.jsonl"))


def test_every_mode_answers_every_question_and_static_auto_one_half(directory: Path) -> None:
    asked: dict[str, int] = {}
    for task in ("demo_add", "choose", "letter", "read"):
        for sample in samples(directory, task):
            asked[sample.mode] = asked.get(sample.mode, 0) + 1
    everyone = 4 * DOCUMENTS
    assert asked == {
        "dense:demo-dense": everyone,
        "static": everyone,
        "static@auto": everyone // 2,
        "cdb": everyone,
    }


def test_all_modes_were_given_the_same_requests(directory: Path, result: Result) -> None:
    assert result.accuracy is not None
    assert result.accuracy.questions is not None
    assert len(result.accuracy.questions) == 64
    prompts: dict[tuple[str, int], set[str]] = {}
    for task in result.samples:
        for sample in samples(directory, task):
            prompts.setdefault(sample.key, set()).add(sample.prompt_hash)
    assert all(len(hashes) == 1 for hashes in prompts.values())


def test_scored_tokens_are_apart_from_generated_ones(directory: Path, result: Result) -> None:
    cdb = result.modes["cdb"].live
    scored = [s for t in ("choose", "letter", "read") for s in samples(directory, t)]
    ours = [s for s in scored if s.mode == "cdb"]
    assert cdb["scored_tokens"] == sum(s.scored_tokens for s in ours) > 0
    depths = [d for s in ours for d in s.later_depths("scored")]
    assert cdb["scored_mean_depth"] == pytest.approx(sum(depths) / len(depths))
    generated = [d for s in samples(directory, "demo_add") for d in s.later_depths("generated")]
    assert generated
    own = [s for s in samples(directory, "demo_add") if s.mode == "cdb"]
    histogram = result.modes["cdb"].depth_histogram or []
    assert sum(histogram) == sum(len(s.later_depths("generated")) for s in own)


def test_choices_of_one_token_are_not_adaptive(result: Result) -> None:
    assert result.accuracy is not None
    tasks = result.accuracy.modes["cdb"].tasks
    assert not tasks["letter"].adaptive
    assert tasks["letter"].mean_depth is None
    assert tasks["choose"].adaptive


def test_a_perplexity_is_lm_evals_own_and_has_no_verdict(result: Result) -> None:
    assert result.accuracy is not None
    assert result.scores is not None
    assert result.accuracy.modes["cdb"].tasks["read"].rate is None
    (score,) = result.scores.tasks["cdb"]["read"]
    assert score.metric == "word_perplexity"
    assert score.value is not None
    assert score.value > 1


def test_accuracy_is_made_again_from_the_samples(directory: Path) -> None:
    assert check(directory) == []


def tampered(directory: Path, path: Path, change: Any, task: str = "demo_add") -> list[str]:
    for file in directory.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    file = path / f"samples_{task}.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return check(path)


def test_a_changed_or_lost_sample_is_caught(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    def flip(lines: list[dict[str, Any]]) -> None:
        last = next(line for line in reversed(lines) if line["mode"] == "cdb")
        last["value"] = last["metrics"][last["primary"]] = 1.0 - last["value"]

    found = tampered(directory, tmp_path / "a", flip)
    assert any(line.startswith("accuracy.modes.cdb") for line in found)
    found = tampered(directory, tmp_path / "b", lambda lines: lines.pop())
    assert any("samples of" in line for line in found)


Capture = pytest.CaptureFixture[str]


def shown(capsys: Capture, *words: object, code: int = 0) -> str:
    assert main(["show", *map(str, words)]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_one_question_is_shown_in_two_modes_by_depth(directory: Path, capsys: Capture) -> None:
    out = shown(capsys, directory, "--task", "demo_add", "--doc", 1)
    sample = next(s for s in samples(directory, "demo_add") if s.key == ("demo_add", 1))
    assert sample.prompt in out
    assert f"target: {sample.target}" in out
    assert out.index("static:") < out.index("cdb:")
    assert "·4" in out
    scored = shown(capsys, directory, "--task", "choose", "--doc", 0, "--against", "static@auto")
    assert "choice 3: answer : 3 ." in scored
    assert "nats" in scored


def test_questions_whose_verdict_changed_are_listed(directory: Path, capsys: Capture) -> None:
    document = json.loads(shown(capsys, directory, "--changed", "--json"))
    stored = StoredSamples(directory)
    values = {
        (s.mode, *s.key): s.value
        for t in stored.tasks
        for s in stored.of_task(t)
        if s.value != None  # noqa: E711
    }
    for one in document["changed"]:
        key = (one["task"], one["doc_id"])
        assert values["static", *key] != values["cdb", *key]
    assert "changed from static to cdb" in shown(capsys, directory, "--changed")


def test_a_run_and_a_task_are_shown_as_tables(directory: Path, capsys: Capture) -> None:
    out = shown(capsys, directory)
    assert "accuracy by task" in out
    assert "not adaptive" in out
    assert "question by question" in shown(capsys, directory, "--task", "choose")
    document = json.loads(shown(capsys, directory, "--task", "choose", "--json"))
    assert {s["task"] for s in document["samples"]} == {"choose"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--doc", "1"], "of which task"),
        (["--task", "chose"], "did you mean 'choose'"),
        (["--task", "choose", "--doc", "77"], "it has 0 to 3"),
        (["--changed", "--mode", "cbd"], "did you mean 'cdb'"),
        (["--task", "choose", "--doc", "1", "--changed"], "--changed"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    words: list[str], message: str, directory: Path, capsys: Capture
) -> None:
    err = shown(capsys, directory, *words, code=2)
    assert message in err
    assert err.count("\n") == 1


def test_a_directory_without_samples_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert "No such" in shown(capsys, tmp_path / "none", code=2)


def test_a_value_that_is_not_its_metric_is_caught(directory: Path, tmp_path: Path) -> None:
    def edit(lines: list[dict[str, Any]]) -> None:
        lines[0]["metrics"][lines[0]["primary"]] = 1.0 - lines[0]["value"]

    assert any("beside exact_match" in line for line in tampered(directory, tmp_path, edit))


@pytest.mark.parametrize("metric", ["acc,none", "acc_norm,none"])
def test_a_metric_that_its_logprobs_do_not_give_is_caught(
    metric: str, directory: Path, tmp_path: Path
) -> None:
    def edit(lines: list[dict[str, Any]]) -> None:
        line = lines[0]
        line["metrics"][metric] = 1.0 - line["metrics"][metric]
        line["value"] = line["metrics"][line["primary"]]

    assert any(
        "beside logprobs that give" in line
        for line in tampered(directory, tmp_path, edit, "choose")
    )


def test_a_logprob_that_its_tokens_do_not_give_is_caught(directory: Path, tmp_path: Path) -> None:
    def edit(lines: list[dict[str, Any]]) -> None:
        lines[0]["answers"][0]["logprob"] -= 0.25

    found = tampered(directory, tmp_path, edit, "read")
    assert any("beside tokens that sum to" in line for line in found)


def test_a_text_that_its_request_did_not_generate_is_caught(
    directory: Path, tmp_path: Path
) -> None:
    def edit(lines: list[dict[str, Any]]) -> None:
        lines[0]["answers"][0]["pieces"][0]["tokens"][0] += 1

    assert any(
        "other tokens than its request" in line for line in tampered(directory, tmp_path, edit)
    )


def test_every_task_is_halved_for_static_auto(directory: Path, result: Result) -> None:
    table = task_table(result)
    titles = [column.title for column in table.columns]
    asked = {
        (row.group, row.cells[0].value): row.cells[titles.index("questions")].value
        for row in table.rows
    }
    for task in ("demo_add", "choose", "letter"):
        assert asked[task, "static"] == DOCUMENTS
        assert asked[task, "static@auto"] == DOCUMENTS // 2
        judged = [s for s in samples(directory, task) if s.mode == "static@auto"]
        assert len(judged) == DOCUMENTS // 2


def test_a_mode_is_not_held_against_itself(directory: Path, capsys: Capture) -> None:
    err = shown(capsys, directory, "--changed", "--mode", "static", code=2)
    assert "against itself" in err


def test_a_limit_that_was_asked_for_does_not_give_way_to_samples(
    tmp_path: Path, capsys: Capture
) -> None:
    words = ["--tasks", "demo_add", "--samples", '{"demo_add": [1]}', "--limit", "2"]
    assert main(["run", *words, "--out", str(tmp_path / "o")]) == 2
    assert "limit: does not go with samples" in capsys.readouterr().err


def test_likelihoods_alone_leave_nothing_to_time(
    tasks: Path, tmp_path: Path, capsys: Capture
) -> None:
    code = main(
        [
            "run",
            "--tasks",
            str(tasks / "choose.yaml"),
            "--device",
            "cpu",
            "--out",
            str(tmp_path / "o"),
        ]
    )
    assert code == 2
    assert "none of them generates text" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_likelihoods_alone_are_asked_under_a_kv_budget(tasks: Path, tmp_path: Path) -> None:
    words = ["--tasks", str(tasks / "choose.yaml"), "--limit", "2", "--work", "live"]
    words += ["--modes", "static,cdb", "--set", "kv.budget_bytes=20000000", "--device", "cpu"]
    assert main(["run", *words, "--out", str(tmp_path / "o"), "--json"]) == 0


@pytest.mark.slow
def test_two_processes_answer_as_one(tasks: Path, tmp_path: Path) -> None:
    """As torchrun starts them: every document once, the same samples, one report."""
    words = ["run", "--tasks", f"demo_sum,{tasks / 'choose.yaml'}", "--limit", "5"]
    words += ["--work", "live", "--modes", "static,static@auto,cdb", "--device", "cpu"]
    words += ["--dtype", "float64"]
    assert main([*words, "--out", str(tmp_path / "one"), "--json"]) == 0
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--no-python",
    ]
    command += ["cdbench", *words, "--out", str(tmp_path / "two")]
    binaries = str(Path(sys.executable).parent)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{binaries}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("Written to") == 1
    for task in ("demo_sum", "choose"):
        one, two = (samples(tmp_path / name, task) for name in ("one", "two"))
        assert [rounded(sample) for sample in one] == [rounded(sample) for sample in two]


def rounded(sample: SampleRecord) -> dict[str, Any]:
    """A sample without the last digits of its logprobs, which a launch's shape decides."""
    plain: dict[str, Any] = json.loads(sample.model_dump_json())
    for one in plain["answers"]:
        one["logprob"] = None if one["logprob"] is None else round(one["logprob"], 9)
        for piece in one["pieces"]:
            piece["logprobs"] = [round(value, 9) for value in piece["logprobs"]]
    plain["filtered"] = {}
    return plain
