"""The run configuration: defaults, precedence, refusals, and grammars that round-trip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cdbench import config
from cdbench.config import (
    ExitSpec,
    Mode,
    RunConfig,
    check_exit,
    load_config,
    parse_exit,
    parse_kv,
    parse_mode,
    parse_modes,
)
from cdbench.errors import UsageError
from cdbench.later import LATER, Later

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,12}", fullmatch=True)
PATHS = st.from_regex(r"[a-zA-Z0-9_./:-]{1,20}", fullmatch=True)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN_RULES = NAMES.filter(lambda n: n not in {"none", "fixed", "trace", "lookahead"})


def refusal(*overrides: str, **flags: Any) -> str:
    """The one line that refuses these settings."""
    with pytest.raises(UsageError) as caught:
        load_config(overrides=overrides, flags=flags)
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in (": ", "; ")), message  # what: why; what to do
    return message


# ── grammar ──────────────────────────────────────────────────────────────────────────────────────

SPECS = st.one_of(
    st.just(ExitSpec("none")),
    st.builds(ExitSpec, st.just("fixed"), depth=st.integers(1, 999)),
    st.builds(ExitSpec, PLAIN_RULES, st.none() | FLOATS),
    st.builds(ExitSpec, st.just("trace"), st.none() | FLOATS, trace_file=PATHS),
    st.builds(ExitSpec, st.just("lookahead"), st.none() | FLOATS, predictor=PATHS),
)


@given(SPECS)
def test_exit_grammar_round_trips(spec: ExitSpec) -> None:
    assert parse_exit(str(spec)) == spec


@given(st.text(max_size=20))
def test_any_exit_text_is_read_or_refused(text: str) -> None:
    try:
        spec = parse_exit(text)
    except UsageError:
        return
    assert parse_exit(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "@0.5",
        "cdf@",
        "cdf@x",
        "cdf@nan",
        "cdf@inf",
        "cdf:3",
        "none@0.5",
        "fixed",
        "fixed:",
        "fixed:0",
        "fixed:-1",
        "fixed:1.5",
        "fixed:2@0.5",
        "trace",
        "trace:",
        "lookahead",
        "lookahead:",
        "CDF",
    ],
)
def test_bad_exit_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=";"):
        parse_exit(text)


def test_a_trace_file_may_hold_an_at_sign() -> None:
    assert parse_exit("trace:a@b.jsonl") == ExitSpec("trace", trace_file="a@b.jsonl")
    assert parse_exit("trace:a@b@0.5") == ExitSpec("trace", 0.5, trace_file="a@b")


@given(
    st.one_of(
        st.sampled_from([Mode("static"), Mode("lockstep"), Mode("cdb"), Mode("static", "auto")]),
        st.builds(Mode, st.just("static"), depth=st.integers(1, 999)),
        st.builds(Mode, st.just("dense"), dense=PATHS),
    )
)
def test_mode_grammar_round_trips(mode: Mode) -> None:
    assert parse_mode(str(mode)) == mode


def test_modes_are_a_list_without_repeats() -> None:
    expected = (Mode("static"), Mode("static", 2), Mode("dense", dense="a/b"))
    assert parse_modes("static, static@2,dense:a/b") == expected
    assert parse_modes(["static", "static@2", "dense:a/b"]) == expected
    for bad in ("", ",", "static,static", "static@0", "static@", "dense", "dense:", "cbd"):
        with pytest.raises(UsageError):
            parse_modes(bad)


def test_an_unknown_mode_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'lockstep'"):
        parse_mode("lock-step")


@pytest.mark.parametrize("layout", ["per-loop", "first-shared", "shared", "slots:1", "slots:16"])
def test_kv_layouts(layout: str) -> None:
    assert parse_kv(layout) == layout


@pytest.mark.parametrize("layout", ["", "per_loop", "slots", "slots:", "slots:0", "slots:x"])
def test_bad_kv_layouts_are_refused(layout: str) -> None:
    with pytest.raises(UsageError):
        parse_kv(layout)


# ── keys and defaults ────────────────────────────────────────────────────────────────────────────


def test_defaults() -> None:
    loaded = load_config()
    assert loaded == RunConfig()
    assert [str(mode) for mode in loaded.resolved_modes] == [
        "dense:demo-dense",
        "static",
        "static@auto",
        "lockstep",
        "cdb",
    ]
    assert loaded.engine.width == loaded.engine.max_residents == 128
    assert loaded.engine.min_free_residents == 16
    assert loaded.exit.spec is None
    assert loaded.weight_seed is None


def test_derived_defaults_follow_what_they_derive_from() -> None:
    loaded = load_config(overrides=["engine.max_residents=16", "model=some/dir"])
    assert loaded.engine.width == 16
    assert loaded.engine.min_free_residents == 2
    assert loaded.dense == ()
    assert load_config(overrides=["engine.max_residents=3"]).engine.min_free_residents == 1
    assert load_config(overrides=["model=demo"]) == load_config()


def test_every_key_is_documented_and_listed_once() -> None:
    infos = config.describe_keys()
    assert len({info.key for info in infos}) == len(infos)
    assert all(info.description for info in infos)
    defaults = [f"{info.key}={info.default}" for info in infos]
    assert load_config(overrides=defaults) == RunConfig()


def test_a_configuration_cannot_be_changed() -> None:
    loaded = load_config()
    with pytest.raises(ValidationError):
        loaded.model = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        loaded.exit.lag = 1  # type: ignore[misc]


def test_yaml_round_trips(tmp_path: Path) -> None:
    original = load_config(
        overrides=[
            "modes=[static, static@2, cdb]",
            "exit=fixed:2",
            "exit.max_loops=4",
            "kv.layout=slots:2",
            "engine.max_residents=5",
            "weights=random:7",
            "out=over there",
        ]
    )
    file = tmp_path / "c.yaml"
    file.write_text(config.to_yaml(original))
    assert load_config(file) == original
    assert original.weight_seed == 7


def test_the_schema_has_every_key() -> None:
    schema = config.json_schema()
    assert set(schema["properties"]) == set(RunConfig.model_fields)
    assert schema["additionalProperties"] is False


# ── precedence ───────────────────────────────────────────────────────────────────────────────────


def test_flags_over_set_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("exit: {min_loops: 2, lag: 1}\nsampling:\n  seed: 3\nkv:\n")
    loaded = load_config(
        file,
        overrides=["sampling.seed=4", "exit.min_loops=3", "exit.min_loops=4"],
        flags={"sampling.seed": 5, "exit.lag": None},
    )
    assert (loaded.sampling.seed, loaded.exit.min_loops, loaded.exit.lag) == (5, 4, 1)
    assert loaded.sampling.top_p == 1.0


def test_a_new_rule_drops_the_old_rules_threshold(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("exit: {rule: cdf, threshold: 0.5, min_loops: 2}\n")
    loaded = load_config(file, flags={"exit.rule": "confidence"})
    assert loaded.exit.spec == ExitSpec("confidence")
    assert loaded.exit.min_loops == 2
    assert load_config(file, flags={"exit.rule": "fixed:3"}).exit.depth == 3
    assert load_config(file, flags={"exit.threshold": 0.25}).exit.spec == ExitSpec("cdf", 0.25)


def test_a_threshold_given_twice_must_agree() -> None:
    loaded = load_config(flags={"exit.rule": "cdf@0.5", "exit.threshold": 0.5})
    assert loaded.exit.spec == ExitSpec("cdf", 0.5)
    assert "contradicts" in refusal(**{"exit.rule": "cdf@0.5", "exit.threshold": 0.25})


def test_values_of_set_are_yaml() -> None:
    loaded = load_config(
        overrides=["exit={rule: cdf, threshold: 1e-3}", "limit=null", "work=equal"]
    )
    assert loaded.exit.threshold == 1e-3
    assert loaded.work == ("equal",)


def test_static_auto_needs_live_work() -> None:
    loaded = load_config(overrides=["work=[equal]"])
    assert Mode("static", "auto") not in loaded.resolved_modes
    assert "accuracy" in refusal("work=[equal]", "modes=static@auto")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("exit.treshold", "exit.threshold"),
        ("threshold", "exit.threshold"),
        ("max_residents", "engine.max_residents"),
        ("kv_layout", "kv.layout"),
        ("exits.rule", "exit.rule"),
        ("exits", "exit"),
        ("exit.lag.x", "exit.lag"),
        ("engine.max_resident", "engine.max_residents"),
        ("modle", "model"),
        ("repeats.seed", "sampling.seed"),
    ],
)
def test_an_unknown_key_names_the_nearest(unknown: str, near: str) -> None:
    assert f"did you mean `{near}`?" in refusal(f"{unknown}=1")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("exit.max_loops=0", "exit.max_loops"),
        ("exit.min_loops=0", "exit.min_loops"),
        ("exit.lag=2", "exit.lag"),
        ("exit.lag=true", "exit.lag"),
        ("exit.threshold=.nan", "exit.threshold"),
        ("exit.threshold=.inf", "exit.threshold"),
        ("exit.depth=2", "exit.rule"),
        ("exit.rule=fixed", "exit rule 'fixed'"),
        ("exit.rule=trace", "exit rule 'trace'"),
        ("exit=5", "exit"),
        ("sampling.top_p=0", "sampling.top_p"),
        ("sampling.top_p=1.01", "sampling.top_p"),
        ("sampling.temperature=-1", "sampling.temperature"),
        ("kv.layout=slots:0", "kv.layout"),
        ("kv.budget_bytes=0", "kv.budget_bytes"),
        ("engine.width=0", "engine.width"),
        ("engine.coda_min_rows=0", "engine.coda_min_rows"),
        ("engine.coda_min_rows=some", "engine.coda_min_rows"),
        ("engine.min_free_residents=129", "engine.min_free_residents"),
        ("modes=[]", "modes"),
        ("modes=cbd", "mode 'cbd'"),
        ("modes=[static, static]", "modes"),
        ("work=[]", "work"),
        ("work=[dead]", "work"),
        ("work=[live, live]", "work"),
        ("tasks=[]", "tasks"),
        ("dense=[a, a]", "dense"),
        ("limit=0", "limit"),
        ("repeats.blocks=0", "repeats.blocks"),
        ("workload.requests=0", "workload.requests"),
        ("weights=random", "weights"),
        ("device=tpu", "device"),
        ("dtype=int8", "dtype"),
        ("model=", "model"),
    ],
)
def test_a_bad_value_names_its_key(override: str, key: str) -> None:
    assert key in refusal(override).partition(";")[0]


@pytest.mark.parametrize(
    "overrides",
    [
        ("exit.max_loops=2", "exit.min_loops=3"),
        ("exit.max_loops=2", "exit=fixed:3"),
        ("exit.max_loops=2", "exit.rule=fixed:3"),
        ("exit.rule=fixed:1", "exit.min_loops=2"),
        ("exit.max_loops=2", "modes=static@3"),
        ("exit.rule=none", "exit.threshold=0.5"),
        ("exit.rule=cdf", "exit.depth=2"),
        ("engine.max_residents=4", "engine.width=5"),
        ("stages=curves.json", "work=live", "modes=static,cdb"),
        ("equal=memory", "kv.budget_bytes=9", "work=live", "modes=static,cdb"),
    ],
)
def test_contradictions_are_refused(overrides: tuple[str, ...]) -> None:
    refusal(*overrides)


UNAVAILABLE = {
    "engine.attention": "varlen",
}


@pytest.mark.parametrize("later", LATER, ids=lambda later: later.key)
def test_what_is_not_there_yet_is_refused(later: Later) -> None:
    value: Any = RunConfig()
    for part in later.key.split("."):
        value = getattr(value, part)
    assert value == later.neutral
    assert "is not available in this version" in refusal(f"{later.key}={UNAVAILABLE[later.key]}")


def test_memory_keys_are_read_and_a_host_budget_needs_a_kv_budget() -> None:
    kv = load_config(
        None, ("kv.budget_fraction=0.5", "kv.host_bytes=9", "kv.prefix_cache=false")
    ).kv
    assert (kv.budget_fraction, kv.host_bytes, kv.prefix_cache) == (0.5, 9, False)
    assert RunConfig().kv.prefix_cache is None, "on for questions, off where work is timed"
    assert "means nothing without a KV budget" in refusal("kv.host_bytes=9")


@pytest.mark.parametrize("text", ["model: demo-ouro\nkv: {}\n", "limit: 150\nexit:\n"])
def test_files_that_say_the_defaults_are_the_defaults(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert load_config(file) == RunConfig()


@pytest.mark.parametrize(
    "text", ["", "  ", "# nothing\n", "null\n", "---\n", "{}", "exit:\n", "kv: {}\nslo:\n"]
)
def test_files_that_say_nothing_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=r"c\.yaml: is empty; write the keys to change"):
        load_config(file)


@pytest.mark.parametrize(
    "content",
    [b"- a\n", b"just text\n", b"exit: [\n", b"limit: 1\nlimit: 2\n", b"\xff\xfe\x00", b"1: 2\n"],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"c\.yaml: ") as caught:
        load_config(file)
    assert "\n" not in str(caught.value)


def test_missing_files_and_directories_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="; "):
            load_config(path)


@pytest.mark.parametrize("text", ["novalue", "=1", "a.b=c", "exit.lag.x=1", "exit=[", "exit.=1"])
def test_bad_set_texts_are_refused(text: str) -> None:
    refusal(text)


@given(
    st.dictionaries(
        st.sampled_from([*config.known_keys(), *config.sections(), "nonsense"]),
        st.none()
        | st.booleans()
        | st.integers()
        | FLOATS
        | st.text(max_size=8)
        | st.lists(st.integers(), max_size=2),
        max_size=4,
    )
)
def test_whatever_is_set_is_loaded_or_refused(values: dict[str, Any]) -> None:
    overrides = [f"{key}={yaml.safe_dump(value)}" for key, value in values.items()]
    try:
        loaded = load_config(overrides=overrides)
    except UsageError:
        return
    assert config.parse_config(yaml.safe_load(config.to_yaml(loaded))) == loaded


# ── rules ────────────────────────────────────────────────────────────────────────────────────────


class Rule:
    def __init__(self, threshold_range: range | None) -> None:
        self.threshold_range: Any = threshold_range


RULES = {"cdf": Rule(range(2)), "none": Rule(None)}


def test_rules_are_checked_where_they_are_known() -> None:
    check_exit("cdf", 1, RULES)
    check_exit("cdf", None, RULES)
    with pytest.raises(UsageError, match="did you mean 'cdf'"):
        check_exit("cfd", None, RULES)
    with pytest.raises(UsageError, match="out of range"):
        check_exit("cdf", 2, RULES)
    with pytest.raises(UsageError, match="takes no threshold"):
        check_exit("none", 1, RULES)
