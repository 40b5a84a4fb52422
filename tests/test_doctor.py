"""``cdbench doctor``: sound models pass, every kind of broken one is caught and named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cdbench.cli.main import main
from cdbench.doctor import examination
from cdbench.doctor.comparison import EXACT, Comparison, Tolerance, in_words
from cdbench.doctor.document import DoctorDocument
from cdbench.doctor.dtypes import _line
from cdbench.doctor.report import closing, print_report
from cdbench.doctor.serving import Served, Step, serve_alone
from cdbench.doctor.stages import StageReport, walk
from cdbench.doctor.whole import full_depth_logits, rounding_noise, signals
from cdbench.models.base import StagedModel
from cdbench.models.checkpoint import save_checkpoint
from cdbench.models.huginn import Huginn
from cdbench.models.ouro import Ouro
from cdbench.render.terminal import make_console
from cdbench.runtime import cache_shape, row_pool, stage_cache
from cdbench.runtime.core import ExitPolicy, FinishReason, Request, RequestResult
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES, LatentDifference, suits
from cdbench.runtime.prefix_cache import PrefixCache
from tests import tiny
from tests.generating import ids_file
from tests.reference import continue_alone
from tests.staged import staged

Capture = pytest.CaptureFixture[str]
Models = dict[str, Path]

SMALLER: dict[str, tuple[Callable[..., StagedModel], dict[str, Any], dict[str, Any]]] = {
    "ouro": (tiny.ouro, tiny.OURO_CONFIG, {"num_hidden_layers": 1, "total_ut_steps": 3}),
    "huginn": (
        tiny.huginn,
        tiny.HUGINN_CONFIG,
        {"n_layers_in_recurrent_block": 1, "mean_recurrence": 3},
    ),
    "universal": (tiny.universal, tiny.UNIVERSAL_CONFIG, {"max_loops": 3}),
    "looped_llama": (
        tiny.looped_llama,
        tiny.LOOPED_LLAMA_CONFIG,
        {"core_layers": 1, "max_loops": 3},
    ),
    "llama": (tiny.llama, tiny.LLAMA_CONFIG, {"num_hidden_layers": 1}),
}
"""The tiny models, with fewer layers and loops: an examination serves some forty batches."""
LOOPS = 3
FEW = ("--requests", "2", "--max-new-tokens", "6")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A checkpoint of every family; the adaptive ones name a rule on their card."""
    cards = {"ouro": "cdf@0.6", "huginn": "kl@0.3", "universal": "act@0.7"}
    found = {}
    for name, (build, config, changes) in SMALLER.items():
        directory = tmp_path_factory.mktemp(name)
        save_checkpoint(build(**changes), {**config, **changes}, directory, torch.float32)
        (directory / "card.json").write_text(json.dumps({"exit": cards.get(name, "none")}))
        found[name] = directory
    return found


def doctor(capsys: Capture, *args: object) -> tuple[int, str, str]:
    code = main(["doctor", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def examined(capsys: Capture, *args: object, code: int = 0) -> DoctorDocument:
    found, out, err = doctor(capsys, *args, *FEW, "--json")
    assert found == code, err
    return DoctorDocument.model_validate_json(out)


@pytest.fixture(scope="module")
def documents() -> dict[str, DoctorDocument]:
    """The families examined so far."""
    return {}


Sound = Callable[[str], DoctorDocument]


@pytest.fixture
def sound(capsys: Capture, models: Models, documents: dict[str, DoctorDocument]) -> Sound:
    """A sound model's examination, made once."""

    def of(family: str) -> DoctorDocument:
        if family not in documents:
            documents[family] = examined(capsys, "--model", models[family])
        return documents[family]

    return of


def verdicts(document: DoctorDocument) -> dict[str, str]:
    return {check.name: check.verdict for check in document.checks}


# Sound models.


@pytest.mark.parametrize("family", SMALLER)
def test_a_sound_model_passes(sound: Sound, family: str) -> None:
    document = sound(family)
    found = verdicts(document)
    looped = family != "llama"
    skipped = set() if looped else {"unrolled", "layouts", "exits"}
    assert {name for name, verdict in found.items() if verdict == "not applicable"} == skipped
    assert {found[name] for name in found.keys() - skipped} == {"pass"}
    assert (document.verdict, document.config["dtype"]) == ("pass", "float64")
    figures = {check.name: check.figures for check in document.checks}
    assert figures["kv-budget"]["preemptions"]
    assert figures["prefix-cache"]["hit_rate"]
    assert document.facts is not None
    assert (document.facts.unread_parameters, document.facts.not_finite_parameters) == ([], [])
    assert "random token ids: exits mean nothing" in document.notes
    # Greedy requests alone; a depth for each of their later tokens.
    exact, *rounded = document.dtypes
    assert (exact.dtype, exact.same_tokens_and_depths) == ("float64", 1.0)
    assert [line.dtype for line in rounded] == ["float32"] * 2 + ["bfloat16"] * 2
    assert {line.requests for line in document.dtypes} == {2}
    assert (document.rules != []) == looped


def test_rules_are_tried_at_their_defaults(sound: Sound) -> None:
    lines = {line.rule: line for line in sound("universal").rules}
    dims = tiny.universal().dims
    assert set(lines) == {"none", "fixed:2"} | {
        name for name, rule in RULES.items() if rule.threshold_range and suits(rule, dims)
    }
    assert lines["act"].threshold == RULES["act"].default_threshold
    assert lines["none"].mean_depth == LOOPS
    assert lines["fixed:2"].depths == [0, lines["fixed:2"].tokens, 0]
    assert all(line.not_finite == 0 for line in lines.values())
    assert lines["none"].signals == 0 < lines["act"].signals


def test_what_is_asked_for_is_what_is_examined(
    capsys: Capture, models: Models, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": [1, 2, 3], "max_new_tokens": 5},
        {"prompt": [4, 5], "force": [6, 7, 8]},
    ]
    file = ids_file(tmp_path / "two.jsonl", lines)
    args = ["--exit", "confidence@0.4", "--kv", "slots:2", "--dtype", "float32"]
    document = examined(capsys, "--model", models["ouro"], "--prompts", file, *args)
    shown = {
        "exit": "confidence@0.4",
        "kv": "slots:2",
        "dtype": "float32",
        "reference_dtype": "float64",
        "prompts": str(file),
        "requests": 1,
        "probes": 2,
    }
    assert shown.items() <= document.config.items()
    assert set(verdicts(document).values()) <= {"pass", "rounding"}
    against = [line.against for line in document.dtypes]
    assert against == ["float64", "float64", "float32", "float64", "bfloat16"]
    assert not any("random" in note for note in document.notes)


def test_random_weights_are_the_same_in_every_dtype(capsys: Capture, models: Models) -> None:
    few = ["--requests", 1, "--max-new-tokens", 2, "--json"]
    code, out, err = doctor(capsys, "--model", models["ouro"], "--weights", "random:3", *few)
    assert code == 0, err
    document = DoctorDocument.model_validate_json(out)
    against = {line.dtype: line for line in document.dtypes if line.compared == "dtypes"}
    gap = against["float32"].largest_logprob_gap
    assert gap is not None
    assert gap < 1e-4
    assert any(note.startswith("random weights (seed 3)") for note in document.notes)


def test_a_large_model_is_held_to_what_rounding_allows(
    capsys: Capture, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "SMALL_BYTES", 0)
    code, out, err = doctor(capsys, "--model", models["ouro"], "--json", "--device", "cpu")
    document = DoctorDocument.model_validate_json(out)
    assert code == 0, err
    assert document.config["dtype"] == document.config["reference_dtype"] == "float32"
    assert document.config["requests"] == examination.LARGE_EXTENT.requests
    assert {line.dtype for line in document.dtypes} == {"float32", "bfloat16"}
    assert any("too large for float64" in note for note in document.notes)


def test_a_low_precision_is_counted_and_not_judged(capsys: Capture, models: Models) -> None:
    found = examined(capsys, "--model", models["huginn"], "--dtype", "bfloat16")
    changed = [check for check in found.checks if check.verdict == "rounding"]
    assert changed
    assert all(check.figures["changed"] and check.first_difference for check in changed)


# Broken ones.


def broken(capsys: Capture, model: Path, *args: object) -> tuple[list[str], str]:
    """The checks that failed, and the one line on stderr that says so."""
    code, out, err = doctor(capsys, "--model", model, *args, *FEW, "--json")
    document, last = DoctorDocument.model_validate_json(out), err.splitlines()[-1]
    assert (code, document.verdict, document.dtypes) == (3, "fail", [])
    failed = [check.name for check in document.failed]
    assert last.startswith(f"cdbench: doctor: {len(failed)} of 13 checks failed: {failed[0]}: ")
    assert closing(document).startswith(f"FAIL: {', '.join(failed)}. ")
    return failed, last


def test_a_wrong_slot_is_caught(
    capsys: Capture, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = stage_cache.StageCache.lines

    def one_before(self: Any, residents: Tensor, slots: Tensor, context: int) -> Tensor:
        return right(self, residents, (slots - 1).clamp(min=0), context)

    monkeypatch.setattr(stage_cache.StageCache, "lines", one_before)
    failed, line = broken(capsys, models["ouro"])
    assert failed[0] == "whole"
    assert "request 0, token 1: " in line
    assert "top-2 margin" in line


def test_a_gate_that_sees_the_batch_is_caught(
    capsys: Capture, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Ouro.exit_logit
    monkeypatch.setattr(
        Ouro, "exit_logit", lambda self, state: right(self, state) + state.shape[0] / 2
    )
    failed, line = broken(capsys, models["ouro"])
    # At full depth no gate has a say, and alone or in company is where the batch changes.
    assert failed[0] == "alone-batched"
    assert not {"whole", "unrolled", "cdb-static", "layouts"} & set(failed)
    assert "at depth" in line


def test_a_coda_that_leaves_out_a_layer_is_caught(
    capsys: Capture, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Huginn.coda
    with monkeypatch.context() as patch:
        patch.setattr(Huginn, "coda", lambda self, state, ctx: self.norm(self.norm(state)))
        document = examined(capsys, "--model", models["huginn"], code=3)
    assert [check.name for check in document.failed] == ["stages"]
    assert "coda: declares 1 layers" in (document.failed[0].detail or "")
    assert set(verdicts(document).values()) == {"pass", "fail", "not applicable"}
    # Only where one token runs: the stages look sound, the whole sequence tells.
    with monkeypatch.context() as patch:
        patch.setattr(
            Huginn,
            "coda",
            lambda self, state, ctx: (
                right(self, state, ctx) if state.shape[0] > 1 else self.norm(self.norm(state))
            ),
        )
        assert broken(capsys, models["huginn"])[0][0] == "whole"


def _lost_rows(self: Any, rows: Any, contents: Tensor) -> None:
    for pool, values in zip(self.layers, contents, strict=True):
        pool[torch.from_numpy(rows)] = torch.zeros_like(values)


def _last_row_only(self: Any, node: Any, right: Any = PrefixCache.lines) -> Any:
    lines = right(self, node).items()
    return {stage: np.repeat(line[:, -1:], line.shape[1], axis=1) for stage, line in lines}


def _too_many_slots(layout: str, loops: int, right: Any = cache_shape.slots_of_layout) -> int:
    return 2 if layout == "shared" else int(right(layout, loops))


def _no_number(self: Any, evidence: Any, memory: Tensor) -> Tensor:
    return torch.full_like(evidence[0][:, 0], float("nan"))


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "check"),
    [
        (row_pool.RowPool, "from_host", _lost_rows, "kv-budget"),
        (PrefixCache, "lines", _last_row_only, "prefix-cache"),
        (cache_shape, "slots_of_layout", _too_many_slots, "layouts"),
        (LatentDifference, "signal", _no_number, "exits"),
    ],
)
def test_what_only_one_check_sees_is_caught_by_it(
    capsys: Capture,
    models: Models,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    wrong: Any,
    check: str,
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    assert [c.name for c in examined(capsys, "--model", models["ouro"], code=3).failed] == [check]


def test_an_exception_is_a_failure_of_its_check(
    capsys: Capture, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, state: Tensor) -> Tensor:
        raise ZeroDivisionError("no gate")

    monkeypatch.setattr(Ouro, "exit_logit", fails)
    failed, line = broken(capsys, models["ouro"])
    assert failed[0] == "stages"
    assert "ZeroDivisionError: no gate" in line


def test_stages_are_held_to_what_is_declared() -> None:
    model = staged()
    assert walk(model, [1, 2, 3]) == StageReport([], [])
    model.register_parameter("spare", torch.nn.Parameter(torch.zeros(1)))
    model.dims = replace(model.dims, coda_layers=2, vocab_size=24, has_injection=False)
    report = walk(model, [1, 2, 3])
    assert report.unread == ["spare"]
    assert report.complaints == [
        "prelude: the model does not declare an injection",
        "coda: declares 2 layers, attention was called by layers: 0",
        "shape of the logits: [3, 23], declared [3, 24]",
    ]


# What it is held to.


@pytest.mark.parametrize("build", [tiny.ouro, tiny.huginn, tiny.universal, tiny.looped_llama])
def test_the_whole_forward_is_the_reference(build: Callable[..., StagedModel]) -> None:
    model, prompt = build(), [3, 1, 4]
    request = Request("a", prompt, force=[1, 5, 9, 2])
    alone = continue_alone(model, request, "per-loop")
    logits = full_depth_logits(model, [*prompt, 1, 5, 9])[len(prompt) - 1 :]
    logprobs = logits.log_softmax(-1)[range(4), [1, 5, 9, 2]]
    assert logprobs.tolist() == pytest.approx(alone.logprobs, abs=1e-12)


def test_rounding_noise_has_the_size_of_the_dtypes() -> None:
    ids = [3, 1, 4, 1, 5, 9]
    sizes = [rounding_noise(tiny.ouro(dtype), ids) for dtype in (torch.float64, torch.float32)]
    assert 1e-17 < sizes[0] < 1e-12
    assert 1e-8 < sizes[1] < 1e-3
    assert rounding_noise(tiny.ouro(), ids) == sizes[0]


def test_signals_over_a_sequence_are_the_rules() -> None:
    model = tiny.universal()
    found = signals(model, [3, 1, 4, 1])
    names = {n for n, r in RULES.items() if r.needs is not Needs.NOTHING and suits(r, model.dims)}
    assert found.keys() == names
    assert {tuple(values.shape) for values in found.values()} == {(model.dims.max_loops, 4)}
    # A sum of probabilities only rises.
    assert (found["act"].diff(dim=0) > 0).all()


@pytest.mark.parametrize("rule", ["cdf", "argmax-stability", "kl"])
def test_every_token_has_the_readout_it_came_from(tiny_ouro: StagedModel, rule: str) -> None:
    policy = ExitPolicy(rule, {"cdf": 0.6, "argmax-stability": 1, "kl": 0.3}[rule])
    requests = [Request(str(i), [i + 1, 2], 9, exit=policy) for i in range(3)]
    config = EngineConfig(max_residents=1)
    first = serve_alone(tiny_ouro, config, requests, print_nothing).results["0"]
    # One that a stop token ends, in the middle and at once.
    stops = [frozenset({first.tokens[4]}), frozenset({first.tokens[0]})]
    requests += [replace(requests[0], id=f"s{i}", stop_ids=ids) for i, ids in enumerate(stops)]
    served = serve_alone(tiny_ouro, config, requests, print_nothing, keep_logits=True)
    for name, result in served.results.items():
        logits = served.logits[name]
        ended = result.finish_reason is FinishReason.STOP
        assert len(logits) == len(served.steps[name]) == len(result.tokens) + ended
        shown = logits[: len(result.tokens)].log_softmax(-1)
        picked = [float(row[token]) for row, token in zip(shown, result.tokens, strict=True)]
        assert picked == pytest.approx(result.logprobs, abs=1e-12)
        if ended:
            assert int(logits[-1].argmax()) in requests[int(name[1:]) + 3].stop_ids


def print_nothing(requests: int) -> None: ...


def result(tokens: list[int], depths: list[int], logprobs: list[float]) -> RequestResult:
    return RequestResult(
        "a", 2, tokens, depths, depths, logprobs, None, None, FinishReason.LENGTH, None, 0, 0, [], 0
    )


def compared(tolerance: Tolerance, margin: float, found: RequestResult) -> Comparison:
    steps = [Step(margin, 10.0)] * 3
    expected = Served({"a": result([1, 2, 3], [4, 2, 2], [-0.5] * 3)}, {"a": steps})
    comparison = Comparison(tolerance)
    comparison.add(expected, {"a": found})
    return comparison


def test_a_difference_is_judged_by_its_margin() -> None:
    other = result([1, 9, 3], [4, 2, 2], [-0.5] * 3)
    single, half = Tolerance(1e-4), Tolerance(0.1)  # of a largest logit of 10
    assert compared(EXACT, 1e-10, other).near_ties == 1
    assert compared(EXACT, 1e-3, other).wrong
    assert compared(single, 1e-4, other).by_rounding
    assert compared(single, 0.1, other).wrong
    assert compared(half, 0.1, other).by_rounding
    assert compared(half, 2.0, other).wrong
    assert in_words(compared(single, 0.1, other).wrong[0]) == (
        "request a, token 1: id 9 at depth 2, expected id 2 at depth 2 (top-2 margin 0.1)"
    )


def test_a_depth_may_change_by_rounding_alone() -> None:
    other = result([1, 2, 3], [4, 2, 3], [-0.5] * 3)
    (wrong,) = compared(EXACT, 1.0, other).wrong
    assert (wrong.what, wrong.token_index, wrong.expected_depth, wrong.found_depth) == (
        "depth",
        2,
        2,
        3,
    )
    assert compared(Tolerance(1e-4), 1.0, other).by_rounding


def test_logprobs_and_lengths_are_compared() -> None:
    (wrong,) = compared(EXACT, 1.0, result([1, 2, 3], [4, 2, 2], [-0.5, -0.5, -0.6])).wrong
    assert (wrong.what, wrong.token_index) == ("logprob", 2)
    assert "logprob -0.6, expected -0.5" in in_words(wrong)
    (wrong,) = compared(EXACT, 1.0, result([1, 2], [4, 2], [-0.5] * 2)).wrong
    assert (wrong.what, wrong.token_index, wrong.found_token) == ("token", 2, None)
    nan = compared(Tolerance(1e-4), 1.0, result([1, 2, 3], [4, 2, 2], [-0.5, float("nan"), 0]))
    assert nan.wrong[0].found_logprob is None


def test_the_dtype_table_by_hand() -> None:
    expected = Served(
        {
            "a": result([1, 2, 3], [4, 2, 2], [-0.1, -0.2, -0.3]),
            "b": result([1, 2, 3], [4, 2, 2], [-0.1, -0.2, -0.3]),
            "c": result([1, 2, 3], [4, 2, 2], [-0.1, -0.2, -0.3]),
        },
        {name: [Step(0.25, 1.0), Step(0.5, 1.0), Step(0.75, 1.0)] for name in "abc"},
    )
    found = {
        "a": result([1, 2, 3], [4, 2, 2], [-0.1, -0.21, -0.3]),
        "b": result([1, 2, 3], [4, 2, 3], [-0.1, -0.2, -9.0]),
        "c": result([1, 5], [4, 2], [-0.1, -8.0]),
    }
    line = _line(torch.bfloat16, torch.float64, expected, found)
    assert line.model_dump(exclude_none=True) == {
        "dtype": "bfloat16",
        "against": "float64",
        "compared": "dtypes",
        "requests": 3,
        "same_tokens": pytest.approx(2 / 3),
        "same_tokens_and_depths": pytest.approx(1 / 3),
        "other_depth": pytest.approx(1 / 7),
        "diverged": 1,
        "earliest_divergence": 1,
        "median_divergence": 1,
        "median_margin": 0.5,
        "largest_margin": 0.5,
        "largest_logprob_gap": pytest.approx(0.01),
        "not_finite": 0,
    }


# Wrong input, and what is printed.


@pytest.mark.parametrize(
    "args",
    [
        ["--model", "demo-our"],
        ["--model", "demo", "--exit", "cdf@2"],
        ["--model", "demo", "--exit", "act"],
        ["--model", "demo", "--exit", "nothing-like-it"],
        ["--model", "demo", "--exit", "trace:somewhere.json"],
        ["--model", "demo", "--kv", "sometimes"],
        ["--model", "demo", "--dtype", "int8"],
        ["--model", "demo", "--weights", "dice:1"],
        ["--model", "demo", "--prompts", "no-such-file.jsonl"],
        ["--model", "demo", "--requests", "0"],
        ["--exit", "cdf"],
        ["--requests", "3"],
        ["--model"],
        ["somewhere"],
    ],
)
def test_wrong_input_is_one_line_and_2(capsys: Capture, args: list[str]) -> None:
    code, out, err = doctor(capsys, *args)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("cdbench: ")


def test_ids_that_do_not_fit_are_named_by_their_line(capsys: Capture, tmp_path: Path) -> None:
    file = ids_file(tmp_path / "ids.jsonl", [{"prompt": [1]}, {"prompt": [2, 5000]}])
    code, _, err = doctor(capsys, "--model", "demo", "--prompts", file)
    assert (code, err.count("\n")) == (2, 1)
    assert "ids.jsonl:2: token id 5000 is outside the vocabulary" in err


def test_without_a_model_the_machine_is_shown(capsys: Capture) -> None:
    code, out, err = doctor(capsys)
    assert (code, err) == (0, "")
    assert "processor" in out
    assert torch.__version__.partition("+")[0] in out
    code, out, _ = doctor(capsys, "--json")
    document = DoctorDocument.model_validate_json(out)
    assert (document.schema_version, document.model, document.checks) == (1, None, [])
    assert document.machine.torch_threads == torch.get_num_threads()


@pytest.mark.parametrize("width", [32, 60, 80, 120, 200])
def test_a_narrow_terminal_keeps_every_verdict(sound: Sound, width: int) -> None:
    printed, stream = sound("ouro"), io.StringIO()
    print_report(printed, make_console(stream, width=width))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for check in printed.checks:
        assert any(line.startswith(check.name) and check.verdict in line for line in lines)
    assert any(line.startswith("PASS: 13 checks") for line in lines)
    shows_all = any("under memory pressure = without" in line for line in lines)
    assert shows_all == (width >= 120)


def test_progress_goes_to_stderr(capsys: Capture, models: Models) -> None:
    code, out, err = doctor(capsys, "--model", models["llama"], *FEW)
    assert code == 0
    assert "check 3 of 13: whole" in err
    assert "check 3 of 13" not in out
    assert out.splitlines()[-1].startswith("PASS: ")
