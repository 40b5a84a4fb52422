"""Whether a recorded run can be replayed on a model, and what is said where it is another's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdbench import manifest
from cdbench.config import parse_config
from cdbench.errors import UsageError
from cdbench.grammar import parse_exit
from cdbench.models.loading import LoadedModel, load_model
from cdbench.workloads.resolve import exit_policy
from cdbench.workloads.trace_fit import check_trace, trace_notes
from cdbench.workloads.traced import ExitTrace, TracedRequest
from tests import tiny

LOOPS, VOCABULARY = 4, 97


@pytest.fixture(scope="module")
def ouro() -> LoadedModel:
    return load_model(str(tiny.FIXTURE), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def huginn() -> LoadedModel:
    return load_model(str(tiny.HUGINN_FIXTURE), dtype="float32", device="cpu")


def trace(model: LoadedModel | None = None, **changes: Any) -> ExitTrace:
    """A run recorded on a model, or on one that is not here."""
    own = manifest.identify(model.name, model.files) if model is not None else None
    request = TracedRequest("a", (1, 2), 2, (5, VOCABULARY - 1), (LOOPS, 2), (LOOPS, 2))
    made = ExitTrace(
        file="REC",
        model="elsewhere" if own is None else own.name,
        spec=parse_exit("cdf@0.5"),
        min_loops=2,
        lag=0,
        max_loops=LOOPS,
        requests=(request,),
        hashes={} if own is None else own.files,
    )
    return replace(made, **changes)


def check(
    trace: ExitTrace, model: LoadedModel, adaptive: bool = True, max_loops: int = LOOPS, **keys: Any
) -> None:
    check_trace(trace, parse_config(keys), model, max_loops, adaptive)


def refusal(trace: ExitTrace, model: LoadedModel, **changes: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(trace, model, **changes)
    return str(caught.value)


def test_a_trace_fits_the_model_it_was_recorded_on(ouro: LoadedModel) -> None:
    check(trace(ouro), ouro)
    assert list(trace_notes(trace(ouro), ouro)) == []
    assert list(trace_notes(trace(ouro, marks=("made up",)), ouro)) == ["REC: made up"]


@pytest.mark.parametrize(("prompt", "tokens"), [((VOCABULARY,), (5, 6)), ((1, 2), (5, VOCABULARY))])
def test_a_token_outside_the_vocabulary_is_refused(
    ouro: LoadedModel, prompt: tuple[int, ...], tokens: tuple[int, ...]
) -> None:
    (request,) = trace().requests
    other = trace(requests=(request, replace(request, id="b", prompt=prompt, tokens=tokens)))
    for adaptive in (True, False):
        line = refusal(other, ouro, adaptive=adaptive)
        assert "request 'b' has token id 97" in line
        assert "recorded on elsewhere" in line
        assert line.endswith(f"replay it on elsewhere, or record it again on {ouro.name}")
    # Where only lengths were kept, the tokens count alone.
    unknown = trace(requests=(replace(request, prompt=None),))
    check(unknown, ouro)


def test_other_loops_are_refused_with_what_can_be_done(ouro: LoadedModel) -> None:
    line = refusal(trace(), ouro, max_loops=3)
    assert line.endswith(f"on elsewhere, this run of {ouro.name} has 3; set --max-loops 4")
    line = refusal(trace(max_loops=32), ouro)
    assert "was recorded at 32 loops on elsewhere" in line
    assert line.endswith(f"replay it on elsewhere, or record it again on {ouro.name}")
    check(trace(max_loops=32), ouro, adaptive=False)  # where tokens alone are replayed


def test_a_rule_that_the_model_has_not_is_refused_by_both_names(huginn: LoadedModel) -> None:
    line = refusal(trace(), huginn, max_loops=8)
    assert "recorded on elsewhere with rule cdf, which needs an exit gate" in line
    assert line.endswith(f"replay it on elsewhere, or record it again on {huginn.name}")


def test_first_tokens_are_read_as_they_were(ouro: LoadedModel) -> None:
    selected = trace(first_token="select")
    assert refusal(trace(), ouro, first_token="select").endswith("set it to full")
    assert refusal(selected, ouro).endswith("set it to select")
    check(selected, ouro, first_token="select")
    derived = replace(selected, derived_from=0.9)
    assert "whose loop at cdf@0.5 is not known" in refusal(derived, ouro, first_token="select")


@pytest.mark.parametrize("derived_from", [None, 0.9])
def test_floor_and_lag_are_those_recorded(ouro: LoadedModel, derived_from: float | None) -> None:
    recorded = trace(derived_from=derived_from)
    for keys in ({}, {"min_loops": 2}, {"lag": 0}):
        policy = exit_policy(parse_config({"exit": keys}), ouro, recorded)
        assert (policy.min_loops, policy.lag) == (2, 0)
    for key, value in (("min_loops", 1), ("min_loops", 3), ("lag", 1)):
        with pytest.raises(UsageError, match=f"exit.{key}: {value} is given, but REC was recorded"):
            exit_policy(parse_config({"exit": {key: value}}), ouro, recorded)


def test_another_model_is_named_beside_the_one_recorded_on(ouro: LoadedModel) -> None:
    cure = "its depths are not this model's own; record it again to have those"
    for other, wanted in (
        (trace(), f"REC was recorded on elsewhere, this is {ouro.name}: {cure}"),
        (trace(weights="random:1"), "recorded on elsewhere with weights random:1, this is"),
        (trace(ouro, hashes={"config.json": "0" * 64}), "on other files of"),
    ):
        (note,) = trace_notes(other, ouro)
        assert wanted in note
        assert note.endswith(cure)


def test_a_model_is_known_by_its_files_under_another_name(
    ouro: LoadedModel, tmp_path: Path
) -> None:
    shutil.copytree(tiny.FIXTURE, tmp_path / "renamed")
    renamed = load_model(str(tmp_path / "renamed"), dtype="float32", device="cpu")
    assert list(trace_notes(trace(ouro), renamed)) == []
    assert list(trace_notes(replace(trace(), model="renamed"), renamed)) == []
