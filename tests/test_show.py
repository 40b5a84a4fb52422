"""Single questions as `cdbench show` prints them: what each request was, and where texts part."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from cdbench.bench.stored_samples import Changed, StoredSamples
from cdbench.render.markdown import to_markdown
from cdbench.render.show_report import changed_table, print_question, question_table
from cdbench.render.terminal import make_console
from cdbench.schema import AnswerRecord, PieceRecord, SampleRecord

PROGRAM = "import sys; from cdbench.cli.main import main; sys.exit(main())"


def generated(*tokens: int) -> AnswerRecord:
    depths = [4] * len(tokens)
    piece = PieceRecord(tokens=list(tokens), executed_depths=depths, requested_depths=depths)
    return AnswerRecord(id="q", kind="generated", text="", prompt_tokens=2, pieces=[piece])


def scored(text: str | None, logprob: float, **changes: object) -> AnswerRecord:
    known = {"id": "q", "kind": "scored", "text": text, "logprob": logprob, "prompt_tokens": 2}
    return AnswerRecord.model_validate({**known, **changes})


def sample(mode: str, *answers: AnswerRecord, **changes: object) -> SampleRecord:
    known = {
        "mode": mode,
        "task": "t",
        "doc_id": 3,
        "doc_hash": "d",
        "prompt_hash": "p",
        "prompt": "which?",
        "answers": list(answers),
        "primary": "acc,none",
        "metrics": {"acc,none": 1.0},
        "value": 1.0,
    }
    return SampleRecord.model_validate({**known, **changes})


def printed(*samples: SampleRecord) -> str:
    stream = io.StringIO()
    print_question(samples, make_console(stream, 200), 4, lambda mode: None)
    return stream.getvalue()


class Kept:
    """A stored run that is in memory."""

    def __init__(self, samples: Sequence[SampleRecord]) -> None:
        self.samples = list(samples)
        self.modes = list(dict.fromkeys(s.mode for s in samples))

    def of_task(self, task: str) -> list[SampleRecord]:
        return self.samples


def questions(*samples: SampleRecord) -> str:
    return to_markdown(question_table(cast(StoredSamples, Kept(samples)), "t"))


def test_every_repeat_is_held_against_its_own() -> None:
    static = sample("static", generated(1, 2), generated(5, 6), generated(8))
    cdb = sample("cdb", generated(1, 2), generated(5, 7), generated(8, 9))
    out = printed(static, cdb)
    assert out.count("repeat 2 of 3:") == 2
    assert "repeat 1: cdb has the same tokens as static." in out
    assert "repeat 2: cdb parts from static at token 1 (from 0)." in out
    assert "repeat 3: cdb parts from static at token 1 (from 0)." in out
    single = printed(sample("static", generated(1, 2)), sample("cdb", generated(1, 2)))
    assert "repeat" not in single
    assert "cdb has the same tokens as static." in single


def test_of_several_repeats_the_list_of_changes_names_the_first_place() -> None:
    static = sample("static", generated(1, 2), generated(5, 6, 7, 8))
    cdb = sample("cdb", generated(1, 2), generated(5, 6, 9))
    table = changed_table([Changed(static, cdb)], "cdb", "static")
    titles = [column.title for column in table.columns]
    assert table.rows[0].cells[titles.index("parts at")].value == 2


def test_everything_a_filter_left_is_shown() -> None:
    repeats = sample("cdb", generated(1), generated(2), filtered={"none": ["7", "8"]})
    assert "read as 7 | 8" in printed(repeats)


def test_a_whole_text_is_no_choice() -> None:
    rolled = sample(
        "cdb",
        scored(None, -12.5, kind="rolled"),
        primary="word_perplexity,none",
        metrics={"word_perplexity,none": [-12.5, 4]},
        value=None,
    )
    out = printed(rolled)
    assert "- the whole text: (-12.500 nats)" in out
    assert "choice" not in out
    assert "no value of its own: its metric is made of all questions (word_perplexity)" in out
    table = questions(rolled, rolled.model_copy(update={"mode": "static"}))
    assert "-12.5" in table
    assert "n/a" not in table
    assert "word_perplexity, none is made of all questions together" in table


def test_a_question_that_failed_has_no_value_in_a_table_of_values() -> None:
    lost = sample("cdb", scored("a", -1.0, error="too long"), value=None, metrics={}, doc_id=4)
    table = questions(sample("cdb", scored("a", -2.5)), lost)
    assert "acc, none, question by question" in table
    assert "n/a" in table
    assert "-2.5" not in table


def test_a_single_continuation_is_no_choice() -> None:
    out = printed(sample("cdb", scored(" Paris", -0.5, greedy=True)))
    assert "- continuation: Paris (-0.500 nats, greedy)" in out


def test_choices_asked_again_without_their_prompt_are_told_apart() -> None:
    choices = [scored(f" {name}", -1.0) for name in "ab"]
    alone = [scored(f" {name}", -2.0, empty_prompt=True) for name in "ab"]
    metrics = {"acc,none": 1.0, "acc_mutual_info,none": 1.0}
    # Where one of them failed, the question has no metrics to go by.
    for known in (metrics, {}):
        out = printed(sample("cdb", *choices, *alone, metrics=known))
        assert "- choice 1: b (-1.000 nats)" in out
        assert "- choice 0 without its prompt: a (-2.000 nats)" in out
        assert "choice 2" not in out
    # Without a prompt in the question itself, the metric alone says so.
    bare = [a.model_copy(update={"empty_prompt": True}) for a in choices]
    assert "choice 2" not in printed(sample("cdb", *bare, *alone, metrics=metrics))
    assert "choice 3: b" in printed(sample("cdb", *bare, *alone, metrics={"acc,none": 1.0}))


@pytest.mark.parametrize("words", [["list", "metrics"], ["list", "metrics", "--json"]])
def test_a_long_result_that_has_no_room_is_one_line(words: list[str]) -> None:
    """A text longer than the stream's buffer is gone from it where its writing fails."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    line = (
        "cdbench: standard output: cannot be written (No space left on device); make room there\n"
    )
    assert (done.returncode, done.stderr) == (4, line)
