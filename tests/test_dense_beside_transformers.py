"""Mode dense beside transformers: turns, ratios and tokens compared, with contestants made up."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from cdbench.stats.blocks import BlockRun
from scripts import dense_beside_transformers as dense
from scripts.dense_contestants import Cdbench, DoesNotRunError, Serve, Work

Capture = pytest.CaptureFixture[str]


def test_lengths_are_equal_or_spread_evenly() -> None:
    equal = dense.draw_work("equal", 5, 8, 4, 64)
    assert {len(p) for p in equal.prompts} == {8}
    assert equal.outputs == (4,) * 5
    mixed = dense.draw_work("mixed", 2000, 8, 40, 64)
    assert {len(p) for p in mixed.prompts} == set(range(2, 15))
    assert {min(mixed.outputs), max(mixed.outputs)} == {10, 70}
    assert mixed.output_tokens / 2000 == pytest.approx(40, rel=0.05)
    assert mixed.longest == max(
        len(p) + n for p, n in zip(mixed.prompts, mixed.outputs, strict=True)
    )


class Fake:
    """Answers with the tokens it is given, and notes when it was asked."""

    def __init__(self, name: str, tokens: list[list[int]], asked: list[str]) -> None:
        self.name, self._tokens, self._asked = name, tokens, asked

    def ready(self) -> AbstractContextManager[Serve]:
        return nullcontext(self._serve)

    def _serve(self, work: Work) -> list[list[int]]:
        self._asked.append(self.name)
        return self._tokens


class Broken(Cdbench):
    """Cannot serve."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ready(self) -> AbstractContextManager[Serve]:
        raise DoesNotRunError("no such device")


TWO = Work(((1,), (2,)), (2, 2))


def test_contestants_take_turns_and_their_tokens_are_compared() -> None:
    asked: list[str] = []
    setting = dense.Setting("float32", "equal", TWO)
    everyone = [
        Fake(Cdbench.name, [[1, 2], [3, 4]], asked),
        Fake("b", [[1, 2], [3, 5]], asked),
        Fake("short", [[1, 2], [3]], asked),
    ]
    dense.measure(setting, everyone, blocks=2)
    a = Cdbench.name
    assert asked == [a, "b", "short", *[a, "b", "b", a], *["b", a, a, "b"]]
    record = setting.record()
    assert list(record["contestants"]) == [a, "b"]
    assert "as many tokens" in record["not_run"]["short"]
    tokens = record["contestants"]["b"]["tokens"]
    assert (tokens["identical"], tokens["token_agreement"]) == (1, 0.75)
    assert tokens["first_divergence"] == 1
    assert record["contestants"]["b"]["cdbench_over_it"]["low"] is None, "two blocks are too few"


def test_a_ratio_is_the_others_wall_over_ours() -> None:
    setting = dense.Setting("float32", "equal", TWO, tokens={Cdbench.name: [], "b": []})
    for block in range(6):
        for name, wall_s in ((Cdbench.name, 1.0), ("b", 2.0), ("b", 2.0), (Cdbench.name, 1.0)):
            setting.runs.append(BlockRun(block, name, wall_s))
    over = setting.over("b")
    assert over is not None
    assert over.estimate == pytest.approx(2.0)
    assert over.n == 6
    assert setting.tokens_per_s("b") == pytest.approx(2.0)


def test_others_may_fail_and_say_why_but_our_own_failure_is_one() -> None:
    setting = dense.Setting("float32", "equal", TWO)
    with pytest.raises(DoesNotRunError):
        dense.measure(setting, [Broken(Cdbench.name)], blocks=1)


def test_everyone_makes_the_same_tokens_in_float32(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "dense.json"
    small = ["--requests", "6", "--width", "4", "--prompt", "6", "--output", "5", "--blocks", "1"]
    assert dense.main(["--tiny", "--dtypes", "float32", *small, "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert [one["lengths"] for one in document["settings"]] == ["equal", "mixed"]
    for setting in document["settings"]:
        served = setting["contestants"]
        assert {"cdbench dense", "generate"} <= set(served)
        assert set(served) | set(setting["not_run"]) == {
            "cdbench dense",
            "generate",
            "continuous batching",
        }
        for name, found in served.items():
            assert len(found["wall_s"]) == 2
            if name != "cdbench dense":
                assert found["tokens"]["identical"] == setting["requests"] == 6
    assert "cdbench over it" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--blocks", "0"], ["--prompt", "500"], ["--dtypes", "int8"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        dense.main([*wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err
