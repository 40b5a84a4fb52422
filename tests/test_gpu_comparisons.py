"""Where two engines part, in the GPU script: what is counted, and what of it is a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdbench.errors import UsageError
from cdbench.runtime.core import FinishReason, RequestResult
from scripts.gpu_parts import switches
from scripts.gpu_parts.check import Check, NotAvailable
from scripts.gpu_parts.demos import parted
from scripts.gpu_parts.record import Record

Found = dict[str, Any]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    return Check("cpu", True, tmp_path, Record(tmp_path / "check.json"))


def served(
    name: str,
    tokens: list[int],
    depths: list[int] | None = None,
    logprobs: list[float] | None = None,
) -> dict[str, RequestResult]:
    return {
        name: RequestResult(
            id=name,
            prompt_tokens=1,
            tokens=tokens,
            executed_depths=depths or [4] * len(tokens),
            requested_depths=depths or [4] * len(tokens),
            logprobs=logprobs or [-1.0] * len(tokens),
            text=None,
            stop_depth=None,
            finish_reason=FinishReason.LENGTH,
            error=None,
            arrival_s=0.0,
            admitted_s=0.0,
            token_s=[0.0] * len(tokens),
            finish_s=0.0,
        )
    }


def test_two_runs_part_where_tokens_or_depths_do() -> None:
    one = served("a", [1, 2, 3], logprobs=[-1.0, -2.0, -3.0]) | served("b", [5, 6], [4, 2])
    same = parted(one, one).as_found()
    assert same == {
        "requests": 2,
        "changed": 0,
        "first_divergence_tokens": None,
        "largest_logprob_difference": 0.0,
    }
    # a parts at its third token, whose logprob no longer counts; b at the depth of its second.
    other = served("a", [1, 2, 4], logprobs=[-1.0, -2.25, -9.0]) | served("b", [5, 6], [4, 3])
    told = parted(one, other)
    assert told.first_tokens == (2, 1)
    assert told.as_found()["first_divergence_tokens"] == 1
    assert told.as_found()["largest_logprob_difference"] == 0.25


def test_one_that_ends_earlier_parts_at_its_end() -> None:
    assert parted(served("a", [1, 2, 3]), served("a", [1, 2])).first_tokens == (2,)


def test_a_logprob_that_is_no_number_is_not_taken_for_agreement() -> None:
    told = parted(served("a", [1]), served("a", [1], logprobs=[float("nan")])).as_found()
    assert told["largest_logprob_difference"] is None
    assert json.dumps(told, allow_nan=False)


def test_runs_of_other_requests_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different requests"):
        parted(served("a", [1]), served("b", [1]))


ON, OFF = {"engine.graphs": True}, {"engine.graphs": False}


def test_tokens_changed_in_float64_are_faults_and_in_bfloat16_are_not(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(dtype: str) -> Callable[..., Any]:
        def answer(_check: Check, _name: str, case: switches.Case, keys: Found) -> Any:
            return served("a", [2 if keys == ON and case.dtype == dtype else 1])

        return answer

    for dtype, faults in (("bfloat16", 0), ("float64", 3)):
        found: Found = {}
        monkeypatch.setattr(switches, "_served", changing(dtype))
        switches.compare(check, found, ON, OFF)
        assert found["faults"] == faults
        assert found[f"demo-ouro {dtype} cdb lag 0"]["changed"] == 1


def test_a_refused_key_is_not_available_and_a_refused_model_is_an_error(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(refused: Found) -> Callable[..., Any]:
        def answer(_check: Check, _name: str, _case: switches.Case, keys: Found) -> Any:
            if keys == refused:
                raise UsageError("engine.graphs: refused; do without")
            return served("a", [1])

        return answer

    monkeypatch.setattr(switches, "_served", refusing(ON))
    with pytest.raises(NotAvailable, match="refused"):
        switches.compare(check, {}, ON, OFF)
    monkeypatch.setattr(switches, "_served", refusing(OFF))
    with pytest.raises(UsageError):
        switches.compare(check, {}, ON, OFF)
