"""Saved stage curves: whatever is wrong with a file is found as it is read, in one line."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench.derived import EqualWork, equal_sections
from cdbench.bench.plan import Plan, make_plan
from cdbench.bench.raw import ContradictionError
from cdbench.bench.rederive import _stages
from cdbench.cli.main import main
from cdbench.config import load_config
from cdbench.errors import UsageError
from cdbench.schema.stages import StageCurves
from cdbench.stages.key import stage_key
from cdbench.stages.saved import read_curves
from tests import tiny
from tests.recorded import FACTS, scripted_blocks, scripted_stages, scripted_workload
from tests.test_verdict import make_result

Document = dict[str, Any]
Spoil = Callable[[Document], object]


def planned(exit_rule: str = "cdf@0.5") -> Plan:
    keys = {
        **{"model": str(tiny.FIXTURE), "dense": "", "modes": "static,cdb", "work": "equal"},
        **{"exit.rule": exit_rule, "device": "cpu", "workload.source": "x.jsonl"},
    }
    return make_plan(load_config(None, (), keys))


PLAN = planned()


def sound(plan: Plan = PLAN) -> Document:
    """A document as a meter leaves it, at 1 and 2 rows and two contexts, for a plan."""
    made = scripted_stages().model_copy(update={"key": stage_key(plan), "rows": "ragged"})
    document: Document = json.loads(made.model_dump_json())
    return document


SOUND = sound()


def read(tmp_path: Path, document: Document, plan: Plan = PLAN) -> StageCurves:
    file = tmp_path / "stages.json"
    file.write_text(json.dumps(document))
    return read_curves(file, plan)


def spoiled(spoil: Spoil) -> Document:
    document = copy.deepcopy(SOUND)
    spoil(document)
    return document


def without(key: str, value: object) -> Spoil:
    def spoil(document: Document) -> None:
        document["points"] = [p for p in document["points"] if p[key] != value]

    return spoil


def renumbered(key: str, old: int, new: int) -> Spoil:
    return lambda d: [p.update({key: new}) for p in d["points"] if p[key] == old]


def first_point(**changes: object) -> Spoil:
    return lambda document: document["points"][0].update(changes)


def test_a_sound_document_is_read_in_any_order_of_its_points(tmp_path: Path) -> None:
    expected = read(tmp_path, SOUND)
    mixed = spoiled(lambda d: random.Random(1).shuffle(d["points"]))
    assert mixed["points"] != SOUND["points"]
    found = read(tmp_path, mixed)
    for stage in ("prelude", "core", "core_with_exit", "coda", "prefill"):
        assert found.curves().launch_s(stage, 1.5, 70) == expected.curves().launch_s(stage, 1.5, 70)
    assert found.widest == 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without("stage", "prelude"), "curve prelude: has no points"),
        (without("stage", "core"), "curve core: has no points"),
        (without("stage", "coda"), "curve coda: has no points"),
        (without("stage", "prefill"), "curve prefill: has no points"),
        (without("stage", "core_with_exit"), "curve core_with_exit: has no points"),
        (lambda d: d.update(points=[]), "has no points"),
        (without("rows", 1), "begins at 2 rows, a run has launches of one"),
        (without("context", 200), "has contexts 1, the document 1, 200"),
        (lambda d: d["points"].pop(0), "3 points are no grid of 2 widths and 2 contexts"),
        (lambda d: d["points"].append(d["points"][0]), "5 points are no grid"),
        (lambda d: d["contexts"].reverse(), "has contexts 1, 200, the document 200, 1"),
        (lambda d: d.update(contexts=[]), "the document none"),
        (first_point(time_s=float("nan")), "points.0.time_s"),
        (first_point(time_s=float("inf")), "points.0.time_s"),
        (first_point(time_s=-1.0), "points.0.time_s"),
        (first_point(time_s=0.0), "points.0.time_s"),
        (first_point(time_s=1e300), "times must be above 0, 1e-12 to 86400 s"),
        (first_point(time_s=1e-300), "times must be above 0, 1e-12 to 86400 s"),
        (first_point(rows=10**400), "points are no grid"),
        (renumbered("rows", 1, 0), "rows must be above 0"),
        (renumbered("rows", 2, 10**400), "rows must be above 0"),
        (renumbered("context", 1, -1), "contexts not below"),
        (first_point(context=-5), "no grid"),
        (first_point(stage="tail"), "points.0.stage"),
        (lambda d: d["floors"]["work"].pop("coda"), "floors: coda is missing"),
        (lambda d: d["floors"].update(bandwidth_bytes_per_s=0), "bandwidth_bytes_per_s"),
        (lambda d: d.pop("floors"), "floors: Field required"),
        (lambda d: d["key"].update(threads=99), "measured for something else (threads: 99"),
        (lambda d: d.update(rows="equal"), "rows of equal context"),
    ],
)
def test_what_is_no_curves_is_refused_and_named(spoil: Spoil, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path, spoiled(spoil))
    message = str(refused.value)
    assert words in message
    assert message.startswith(f"{tmp_path / 'stages.json'}: ")
    assert "\n" not in message


def test_a_rule_that_reads_logits_needs_its_coda_as_well(tmp_path: Path) -> None:
    """Without it the plain coda would stand for it, and the rule would cost nothing."""
    plan = planned("confidence@0.9")
    document = sound(plan)
    read(tmp_path, document, plan)
    document["points"] = [p for p in document["points"] if p["stage"] != "coda_with_exit"]
    with pytest.raises(UsageError, match="curve coda_with_exit: has no points"):
        read(tmp_path, document, plan)
    plain = planned("none")
    document = sound(plain)
    document["points"] = [p for p in document["points"] if "with_exit" not in p["stage"]]
    read(tmp_path, document, plain)


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 1, 3, 10**12, 10**400, 1e-300, 1e300, float("nan"), "x", [], {}, True]
)
PLACES = st.lists(st.integers(0, 1 << 30), min_size=1, max_size=6)


def mutate(document: Document, places: list[int], value: object) -> None:
    """Set, drop or double whatever lies where ``places`` lead to."""
    node: Any = document
    for place in places[:-1]:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        below = [node[k] for k in keys if isinstance(node[k], dict | list) and node[k]]
        if not below:
            break
        node = below[place % len(below)]
    keys = sorted(node) if isinstance(node, dict) else range(len(node))
    key = [*keys][places[-1] % len(keys)]
    if places[-1] % 3 == 0:
        del node[key]
    elif places[-1] % 3 == 1 and isinstance(node, list):
        node.append(node[key])
    else:
        node[key] = value


@settings(deadline=None, max_examples=300)
@given(places=PLACES, value=ODD)
def test_any_change_is_refused_or_harmless(
    places: list[int], value: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is read makes bounds and a waterfall of a whole run: nothing fails after the blocks."""
    document = copy.deepcopy(SOUND)
    mutate(document, places, value)
    try:
        saved = read(tmp_path_factory.getbasetemp(), document)
    except UsageError:
        return
    runs = scripted_blocks(["static", "cdb"], 1)
    work = EqualWork.of(runs, FACTS, scripted_workload(), 64, saved)
    sections = equal_sections(work)
    assert sections.waterfall is not None
    saved.model_dump_json()


def test_a_stored_result_with_such_curves_contradicts_itself() -> None:
    for spoil in (without("stage", "coda"), lambda d: d["floors"]["work"].pop("core")):
        stored = make_result({}).model_copy(update={"stages": spoiled(spoil)})
        with pytest.raises(ContradictionError, match=r"stage curves of result\.json: "):
            _stages(stored)


def test_a_run_is_refused_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "run", tmp_path / "stages.json"
    file.write_text(json.dumps(spoiled(lambda d: d["points"].pop())))
    assert main(["run", "ci", "--stages", str(file), "--work", "equal", "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert not out.exists()
