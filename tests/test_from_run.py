"""``run --from``: the same configuration again, and a word about everything that has changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench.again import config_from, manifest_differences, repeated_lines
from cdbench.cli.main import main
from cdbench.config import RunConfig, known_keys, load_config
from cdbench.errors import UsageError
from cdbench.schema import (
    DeviceInfo,
    GitState,
    Manifest,
    ModelFacts,
    ModelIdentity,
    Result,
    read_result,
    to_json,
    write_result,
)
from tests.test_schema import MANIFEST, small_result
from tests.tiny import FIXTURE

FACTS = ModelFacts(
    name="demo-huginn",
    model_type="huginn_raven",
    parameters=1,
    max_loops=4,
    cost_ratio=1.0,
    kv_bytes_per_token=1,
    kv_layout="shared",
    dtype="float32",
    device="cpu",
)


def run_of(path: Path, config: RunConfig, **changes: Any) -> Path:
    """A finished run with this configuration, as ``cdbench run`` records it."""
    manifest = MANIFEST.model_copy(
        update={"given": config.model_dump(mode="json", exclude_unset=True)}
    )
    fields = {"config": config.model_dump(mode="json"), "manifest": manifest, **changes}
    path.mkdir(parents=True, exist_ok=True)
    write_result(path, small_result(**fields))
    return path


def edited(path: Path, **changes: Any) -> Path:
    """The same run with parts of its ``result.json`` written over."""
    document = json.loads((path / "result.json").read_text(encoding="utf-8"))
    for name, value in changes.items():
        document[name] = value(document[name])
    (path / "result.json").write_text(json.dumps(document), encoding="utf-8")
    return path


def without_out(config: RunConfig) -> dict[str, Any]:
    return config.model_dump(mode="json", exclude={"out"})


CHOICES: dict[str, list[Any]] = {
    "model": ["demo", "demo-huginn"],
    "dense": ["", "demo-dense,unrolled"],
    "modes": ["static,cdb", "static@2,lockstep"],
    "limit": [3, 150],
    "work": ["live,equal", "equal"],
    "exit.rule": ["none", "fixed:2", "cdf@0.4", "trace:ci-trace.json", "latent-diff"],
    "exit.min_loops": [1, 2],
    "exit.lag": [0, 1],
    "kv.layout": ["per-loop", "shared", "slots:2"],
    "kv.budget_bytes": [10**9],
    "engine.max_residents": [3, 16, 128],
    "engine.width": [4, 128],
    "sampling.temperature": [0.5],
    "workload.requests": [2, 224],
    "repeats.blocks": [1, 6],
    "dtype": ["float64", "auto"],
    "out": ["somewhere"],
}


@st.composite
def flags(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(st.sampled_from(sorted(CHOICES)), unique=True))
    return {key: draw(st.sampled_from(CHOICES[key])) for key in keys}


@settings(max_examples=60, deadline=None)
@given(flags())
def test_the_configuration_comes_back_and_so_does_what_was_left_open(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]
) -> None:
    try:
        config = load_config(None, (), chosen)
    except UsageError:
        return
    again = config_from(run_of(tmp_path_factory.mktemp("run"), config)).config()
    assert without_out(again) == without_out(config)
    assert again.out is None
    # What a model's card decides where the key was left open must be open again.
    for section, key in (("kv", "layout"), ("exit", "min_loops"), ("exit", "lag")):
        was, now = getattr(config, section), getattr(again, section)
        assert (key in was.model_fields_set) == (key in now.model_fields_set), key


def test_flags_and_set_win_and_derived_defaults_follow_them(tmp_path: Path) -> None:
    config = load_config(None, (), {"engine.max_residents": 3, "exit.rule": "cdf@0.4"})
    again = config_from(run_of(tmp_path / "a", config))
    changed = again.config(("engine.max_residents=16",), {"exit.rule": "none", "out": "b"})
    assert (changed.engine.max_residents, changed.engine.width) == (16, 16)
    assert (changed.exit.rule, changed.exit.threshold, changed.out) == ("none", None, "b")
    fixed = load_config(None, (), {"engine.max_residents": 3, "engine.width": 3})
    kept = config_from(run_of(tmp_path / "b", fixed)).config(("engine.max_residents=16",))
    assert kept.engine.width == 3


def test_a_default_that_has_changed_since_is_pinned(tmp_path: Path) -> None:
    path = run_of(tmp_path / "a", load_config(None, (), {"limit": 5}))
    edited(path, config=lambda c: c | {"sampling": c["sampling"] | {"seed": 7}})
    config = config_from(path).config()
    assert (config.sampling.seed, config.limit) == (7, 5)


def test_a_run_older_than_some_keys_still_loads(tmp_path: Path) -> None:
    path = run_of(tmp_path / "a", load_config(None, (), {"limit": 5, "exit.rule": "fixed:2"}))

    def older(config: dict[str, Any]) -> dict[str, Any]:
        kept = {key: config[key] for key in ("model", "limit", "exit")}
        del kept["exit"]["lag"]
        return kept

    edited(path, config=older, manifest=lambda m: {k: v for k, v in m.items() if k != "given"})
    config = config_from(path).config()
    assert (config.limit, config.exit.rule, config.exit.depth) == (5, "fixed", 2)
    assert config.engine == RunConfig().engine


def test_an_older_run_keeps_the_layout_that_its_card_decided(tmp_path: Path) -> None:
    config = load_config(None, (), {"model": "demo-huginn"})
    path = run_of(tmp_path / "a", config, model=FACTS, manifest=MANIFEST)
    again = config_from(path)
    assert config.kv.layout == "per-loop"  # what the configuration says, and did not run
    assert again.config().kv.layout == "shared"
    result = small_result(config=again.config().model_dump(mode="json"))
    repeated = again.mark(result).manifest.repeated
    assert repeated is not None
    assert repeated.overridden == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c | {"engin": {}}, "unknown key `engin`; did you mean `engine`?"),
        (lambda c: c | {"kv": c["kv"] | {"layuot": 1}}, "did you mean `kv.layout`?"),
        (lambda c: c | {"limit": -1}, "limit: -1 is refused"),
    ],
)
def test_what_this_version_does_not_know_is_refused_with_a_hint(
    change: Any, words: str, tmp_path: Path
) -> None:
    path = edited(run_of(tmp_path / "a", RunConfig()), config=change)
    with pytest.raises(UsageError) as caught:
        config_from(path)
    assert words in str(caught.value)
    assert "result.json" in str(caught.value)


def test_a_run_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        config_from(tmp_path / "missing")


def test_the_run_may_be_named_by_its_result(tmp_path: Path) -> None:
    path = run_of(tmp_path / "a", load_config(None, (), {"limit": 5}))
    assert config_from(path / "result.json").run == config_from(path).run == "a"


# What has changed.

THEN = MANIFEST.model_copy(
    update={
        "git": GitState(commit="a" * 40, dirty=False),
        "packages": {"torch": "2.6.0", "numpy": "2.0"},
        "torch_threads": 2,
        "env": {"OMP_NUM_THREADS": "2"},
        "models": [ModelIdentity(name="demo-ouro", files={"config.json": "1" * 64})],
    }
)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"git": GitState(commit="b" * 40, dirty=False)},
            f"git.commit: {'a' * 12} then, {'b' * 12} now",
        ),
        ({"packages": {"torch": "2.7.0", "numpy": "2.0"}}, "packages.torch: 2.6.0 then, 2.7.0 now"),
        ({"torch_threads": 1}, "torch_threads: 2 then, 1 now"),
        ({"device": DeviceInfo(kind="cuda")}, "device.kind: cpu then, cuda now"),
        ({"python": "3.12.1"}, "python: 3.11.7 then, 3.12.1 now"),
        ({"env": {}}, "OMP_NUM_THREADS: 2 then, not set now"),
        (
            {"models": [ModelIdentity(name="demo-ouro", files={"config.json": "2" * 64})]},
            f"demo-ouro/config.json: {'1' * 12} then, {'2' * 12} now",
        ),
    ],
)
def test_each_difference_is_one_line(change: dict[str, Any], line: str) -> None:
    assert manifest_differences(THEN, THEN) == []
    assert manifest_differences(THEN, THEN.model_copy(update=change)) == [line]


def test_what_belongs_to_one_run_or_was_not_recorded_makes_no_difference() -> None:
    own = {
        "started_utc": "2027-01-01T00:00:00+00:00",
        "command": ["cdbench", "run", "--from", "a"],
        "load_average": [1.0, 1.0, 1.0],
        "given": {"limit": 1},
    }
    assert manifest_differences(THEN, THEN.model_copy(update=own)) == []
    newer = Manifest.model_validate({**json.loads(to_json(THEN)), "invented_later": 3})
    assert manifest_differences(THEN, newer) == []
    # Another model was asked for: that is an override, not a change.
    other = THEN.model_copy(update={"models": [ModelIdentity(name="demo-ut", files={})]})
    assert manifest_differences(THEN, other) == []


def test_the_result_says_what_it_repeats(tmp_path: Path) -> None:
    config = load_config(None, (), {"limit": 5})
    again = config_from(run_of(tmp_path / "first", config))
    faster = MANIFEST.model_copy(update={"torch_threads": 8})
    changed = again.config(flags={"limit": 6, "out": str(tmp_path / "b")})
    result = small_result(config=changed.model_dump(mode="json"), manifest=faster)
    marked = again.mark(result)
    repeated = marked.manifest.repeated
    assert repeated is not None
    assert (repeated.run, repeated.overridden, repeated.same_workload) == ("first", ["limit"], True)
    assert repeated.differences == ["torch_threads: 2 then, 8 now"]
    assert repeated_lines(repeated) == [
        "repeats the run first of 2026-01-01T00:00:00+00:00",
        "with other values of limit",
        "the same workload",
        "torch_threads: 2 then, 8 now",
    ]
    write_result(tmp_path, marked)
    assert read_result(tmp_path).manifest.repeated == repeated


def with_workload(result: Result, **changes: Any) -> Result:
    return result.model_copy(update={"workload": result.workload.model_copy(update=changes)})


def test_workloads_are_the_same_by_their_hash_alone(tmp_path: Path) -> None:
    again = config_from(run_of(tmp_path / "a", RunConfig()))
    result = small_result(config=RunConfig().model_dump(mode="json"))
    seen = []
    for changes in ({}, {"hash": "cd"}, {"requests": 0}):
        repeated = again.mark(with_workload(result, **changes)).manifest.repeated
        assert repeated is not None
        seen.append(repeated.same_workload)
    assert seen == [True, False, None]


def test_a_run_repeated_for_real_has_the_same_workload(tmp_path: Path) -> None:
    from cdbench.cli.run import measure

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": [1, 2, 3], "max_new_tokens": 4}\n' * 3, encoding="utf-8")
    flags = ["--model", str(FIXTURE), "--work", "equal", "--modes", "cdb", "--blocks", "1"]
    flags += ["--exit", "cdf@0.5", "--set", f"workload.source={prompts}"]
    assert main(["run", *flags, "--out", str(tmp_path / "a"), "--json"]) == 3
    again = config_from(tmp_path / "a")
    result, _ = measure(again.config(flags={"out": str(tmp_path / "b")}), None)
    repeated = again.mark(result).manifest.repeated
    assert repeated is not None
    assert (repeated.run, repeated.overridden, repeated.same_workload) == ("a", [], True)
    first, second = (r.modes["cdb"].metrics for r in (again.before, result))
    assert first["core_launches"] == second["core_launches"]


def test_every_key_but_out_is_carried(tmp_path: Path) -> None:
    recorded = set()
    for key, value in config_from(run_of(tmp_path / "a", RunConfig())).before.config.items():
        recorded |= {f"{key}.{name}" for name in value} if isinstance(value, dict) else {key}
    assert recorded == set(known_keys())
