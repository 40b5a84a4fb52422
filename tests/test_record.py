"""Recording signals, deriving depths from them, and replaying both."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.bench import record as bench_record
from cdbench.bench.record import agreement
from cdbench.cli.main import main
from cdbench.config import parse_config
from cdbench.errors import UsageError
from cdbench.grammar import parse_exit
from cdbench.models.base import StagedModel
from cdbench.runtime.core import ExitPolicy, Request, RequestResult
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES, suits
from cdbench.runtime.ghost import GhostEngine
from cdbench.schema import to_json
from cdbench.schema.recording import Recording
from cdbench.workloads.exit_trace import ExitTrace, TracedRequest, load_exit_trace, own_requests
from cdbench.workloads.recording import check_recordable, default_thresholds, derive
from cdbench.workloads.recording_files import read_recording, sealed
from cdbench.workloads.signals_file import pack_signals
from cdbench.workloads.traced import replayed, traced
from tests import tiny
from tests.generating import ids_file
from tests.pressure import LAYOUTS, MODELS, THRESHOLDS, model_of

Capture = pytest.CaptureFixture[str]
NAN = math.nan


# Depths from signals.


@pytest.mark.parametrize(
    ("policy", "signals", "executed", "requested"),
    [
        (ExitPolicy("cdf", 0.5), [0.2, 0.5, 0.7, 0.9], 2, 2),
        (ExitPolicy("cdf", 0.5), [0.1, 0.2, 0.3, 0.4], 4, 4),
        (ExitPolicy("cdf", 0.5, lag=1), [0.2, 0.5, 0.7, 0.9], 3, 2),
        # The last loop ends a token that was to leave after it.
        (ExitPolicy("cdf", 0.5, lag=1), [0.1, 0.2, 0.3, 0.9], 4, 4),
        # The floor is on what is executed: with lag 1 the decision at loop 2 counts.
        (ExitPolicy("cdf", 0.5, min_loops=3), [0.6, 0.7, 0.8, 0.9], 3, 3),
        (ExitPolicy("cdf", 0.5, min_loops=3, lag=1), [0.4, 0.7, 0.8, 0.9], 3, 3),
        # What the rule would have asked for beyond the exit is not asked.
        (ExitPolicy("latent-diff", 0.3, min_loops=3, lag=1), [0.9, 0.2, 0.9, 0.1], 3, 3),
        (ExitPolicy("cdf", 0.5), [NAN, NAN, 0.7, 0.9], 3, 3),
        (ExitPolicy("cdf", 0.5), [NAN] * 4, 4, 4),
        # A falling rule leaves strictly below its threshold, and a NaN is below nothing.
        (ExitPolicy("latent-diff", 0.3), [0.9, 0.3, 0.2, 0.1], 3, 3),
        (ExitPolicy("latent-diff", 0.3), [NAN, 0.4, 0.5, 0.6], 4, 4),
        # A signal need not be monotonous: the first loop that passes counts.
        (ExitPolicy("latent-diff", 0.3), [0.2, 0.9, 0.9, 0.9], 1, 1),
    ],
)
def test_the_first_loop_that_passes_is_the_depth(
    policy: ExitPolicy, signals: list[float], executed: int, requested: int
) -> None:
    depths = derive(np.array([signals, signals]), policy)
    assert depths.executed.tolist() == [executed] * 2
    assert depths.requested.tolist() == [requested] * 2


RISING = {"cdf", "act", "argmax-stability", "confidence", "margin"}
FALLING = {"latent-diff", "cosine", "entropy-diff", "kl", "minp-kl"}


def passes(rule: str, signal: float, threshold: float) -> bool:
    """The test of a rule, from its description; no comparison with a NaN holds."""
    return signal >= threshold if rule in RISING else signal < threshold


def loop_by_loop(signals: Sequence[float], policy: ExitPolicy) -> tuple[int, int]:
    """Executed and requested depth of one token: looped as an engine loops it."""
    assert policy.threshold is not None
    leaves_after, asked = len(signals), None
    for loop, signal in enumerate(signals, start=1):
        if passes(policy.rule, signal, policy.threshold):
            if loop + policy.lag >= policy.min_loops:
                leaves_after = min(leaves_after, loop + policy.lag)
            if loop >= policy.min_loops and asked is None:
                asked = loop
        if loop == leaves_after:
            break
    return leaves_after, leaves_after if asked is None else asked


@st.composite
def tokens_under_a_rule(draw: st.DrawFn) -> tuple[np.ndarray, ExitPolicy]:
    """Signals ``[T, R]`` as they are stored, many of them at the threshold, and any policy."""
    loops = draw(st.integers(1, 6))
    threshold = draw(st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]))
    near = [threshold, float(np.float32(threshold)), 0.0, 0.3, 0.6, 1.0, 5.0, NAN, math.inf]
    line = st.lists(st.sampled_from(near), min_size=loops, max_size=loops)
    signals = np.array(draw(st.lists(line, max_size=6))).reshape(-1, loops)
    dtype = draw(st.sampled_from(["float32", "float64"]))
    rule = draw(st.sampled_from(sorted(RISING | FALLING)))
    policy = ExitPolicy(rule, threshold, draw(st.integers(1, loops)), draw(st.integers(0, 1)))
    return signals.astype(dtype), policy


@settings(max_examples=400)
@given(tokens_under_a_rule())
def test_depths_are_those_of_looping_token_by_token(drawn: tuple[np.ndarray, ExitPolicy]) -> None:
    signals, policy = drawn
    depths = derive(signals, policy)
    wanted = [loop_by_loop(line, policy) for line in signals.tolist()]
    found = list(zip(depths.executed.tolist(), depths.requested.tolist(), strict=True))
    assert found == wanted


def test_every_rule_with_a_signal_was_looped() -> None:
    assert {name for name, rule in RULES.items() if rule.needs is not Needs.NOTHING} == (
        RISING | FALLING
    )


def draw_policy(rng: random.Random, model: StagedModel) -> ExitPolicy:
    """A rule with a signal, at any floor and lag."""
    rule = rng.choice([name for name in THRESHOLDS if suits(RULES[name], model.dims)])
    floor = rng.choice([1, 1, rng.randint(1, model.dims.max_loops)])
    return ExitPolicy(rule, rng.choice(THRESHOLDS[rule]), floor, rng.randint(0, 1))


def draw_batch(rng: random.Random, policy: ExitPolicy) -> list[Request]:
    return [
        Request(
            id=str(i),
            prompt=[rng.randrange(23) for _ in range(rng.randint(1, 5))],
            max_new_tokens=rng.randint(1, 8),
            exit=policy,
        )
        for i in range(rng.randint(1, 6))
    ]


def draw_engine(rng: random.Random, layout: str | None = None) -> EngineConfig:
    residents = rng.randint(1, 6)
    return EngineConfig(
        mode=rng.choice(["cdb", "lockstep"]),
        max_residents=residents,
        width=rng.randint(1, residents),
        kv_layout=layout or rng.choice(LAYOUTS),
    )


def forced(batch: list[Request], live: dict[str, RequestResult], **changes: Any) -> list[Request]:
    return [dataclasses.replace(r, force=live[r.id].tokens, **changes) for r in batch]


def served(engine: Engine, batch: list[Request]) -> dict[str, RequestResult]:
    return {r.id: r for r in engine.run(batch)}


drawn = given(name=st.sampled_from(list(MODELS)), seed=st.integers(0, 2**32))
few = settings(max_examples=10)


@few
@drawn
def test_the_depths_that_ran_follow_from_the_signals(name: str, seed: int) -> None:
    rng, model = random.Random(seed), model_of(name)
    policy = draw_policy(rng, model)
    batch = draw_batch(rng, policy)
    engine = GhostEngine(model, draw_engine(rng))
    for result in engine.run(batch):
        depths = derive(engine.signals.of(result), policy)
        assert depths.executed.tolist() == result.executed_depths[1:]
        assert depths.requested.tolist() == result.requested_depths[1:]


@few
@drawn
def test_derived_depths_are_exact_until_a_token_leaves_elsewhere(name: str, seed: int) -> None:
    """Up to there the live run reads the keys that the recorded one left behind."""
    rng, model = random.Random(seed), model_of(name)
    policy = draw_policy(rng, model)
    other = dataclasses.replace(policy, threshold=rng.choice(THRESHOLDS[policy.rule]))
    batch, config = draw_batch(rng, policy), draw_engine(rng)
    engine = GhostEngine(model, config)
    recorded = served(engine, batch)
    live = served(
        Engine(model, draw_engine(rng, config.kv_layout)), forced(batch, recorded, exit=other)
    )
    for request in batch:
        derived = derive(engine.signals.of(recorded[request.id]), other).executed.tolist()
        found, before = (r[request.id].executed_depths[1:] for r in (live, recorded))
        same = next((i for i, (a, b) in enumerate(zip(found, before, strict=True)) if a != b), None)
        end = None if same is None else same + 1
        assert derived[:end] == found[:end]


@few
@drawn
def test_replayed_at_q_every_mode_executes_the_recorded_depths(name: str, seed: int) -> None:
    rng, model = random.Random(seed), model_of(name)
    policy = draw_policy(rng, model)
    batch = draw_batch(rng, policy)
    engine = GhostEngine(model, draw_engine(rng))
    recorded = served(engine, batch)
    trace = ExitTrace(
        file="somewhere",
        model=name,
        spec=parse_exit(f"{policy.rule}@{policy.threshold}"),
        min_loops=policy.min_loops,
        lag=policy.lag,
        max_loops=model.dims.max_loops,
        requests=tuple(
            TracedRequest(
                id=r.id,
                prompt=tuple(r.prompt),
                prompt_tokens=len(r.prompt),
                tokens=tuple(recorded[r.id].tokens),
                executed_depths=tuple(recorded[r.id].executed_depths),
                requested_depths=tuple(recorded[r.id].requested_depths),
            )
            for r in batch
        ),
    )
    again = own_requests(trace, policy)
    rng.shuffle(again)
    for mode in ("cdb", "lockstep", "static"):
        config = dataclasses.replace(draw_engine(rng), mode=mode)
        for result in Engine(model, config).run(again):
            assert result.tokens == recorded[result.id].tokens
            full = [model.dims.max_loops] * len(result.tokens)
            wanted = full if mode == "static" else recorded[result.id].executed_depths
            assert result.executed_depths == wanted


def test_float32_signals_lose_nothing_when_they_are_stored() -> None:
    model = tiny.ouro(torch.float32)
    policy = ExitPolicy("cdf", 0.6)
    engine = GhostEngine(model, EngineConfig())
    (result,) = engine.run([Request("a", [1, 2, 3], 12, policy)])
    signals = engine.signals.of(result)
    assert (signals == signals.astype(np.float32)).all()
    stored, content = pack_signals([signals], 4, "float32")
    assert (stored.tokens, stored.loops) == (11, 4)
    assert content == pack_signals([signals], 4, "float32")[1], "the same signals, the same file"


def test_only_rules_with_a_signal_can_be_recorded() -> None:
    for policy in (ExitPolicy(), ExitPolicy("fixed", depth=2)):
        with pytest.raises(UsageError, match="no signal to record"):
            check_recordable(policy)
    check_recordable(ExitPolicy("cdf", 0.5))


def test_default_thresholds_are_inside_the_range_and_not_the_recorded_one() -> None:
    signals = np.array([[0.1, 0.2, 0.3, 9.0], [0.4, 0.5, NAN, 9.0]])
    # Of 0.1 to 0.5: the quartiles are 0.2, 0.3, 0.4. The last loop decides nothing.
    assert default_thresholds([signals], ExitPolicy("cdf", 0.7)) == (0.2, 0.3, 0.4)
    assert default_thresholds([signals], ExitPolicy("cdf", 0.3)) == (0.2, 0.4)
    assert default_thresholds([np.ones((3, 4))], ExitPolicy("cdf", 0.3)) == ()
    assert default_thresholds([np.empty((0, 4))], ExitPolicy("cdf", 0.3)) == ()


def test_agreement_by_hand() -> None:
    found = agreement(0.3, np.array([1, 2, 4, 4]), np.array([1, 3, 4, 2]))
    assert (found.tokens, found.equal, found.mean_difference) == (4, 0.5, 0.75)
    assert (found.mean_depth_derived, found.mean_depth_live) == (2.75, 2.5)
    nothing = agreement(0.3, np.empty(0, np.int64), np.empty(0, np.int64))
    assert (nothing.tokens, nothing.equal, nothing.mean_depth_live) == (0, None, None)


# Which recorded request is which.


def trace_of(*requests: tuple[str, tuple[int, ...] | None, tuple[int, ...]]) -> ExitTrace:
    return ExitTrace(
        file="t.json",
        model="m",
        spec=parse_exit("cdf@0.5"),
        min_loops=1,
        lag=0,
        max_loops=4,
        requests=tuple(
            TracedRequest(
                id=name,
                prompt=prompt,
                prompt_tokens=len(prompt or (1,)),
                tokens=tokens,
                executed_depths=(4, 2),
                requested_depths=(4, 2),
            )
            for name, prompt, tokens in requests
        ),
    )


def test_requests_are_matched_by_prompt_and_among_equal_ones_by_id() -> None:
    trace = trace_of(("a", (1, 2), (5, 6)), ("b", (3,), (7, 8)), ("c", (1, 2), (9, 9)))
    asked = [Request("c", (1, 2)), Request("x", (3,)), Request("y", (1, 2))]
    assert [r.id for r in traced(trace, asked, ["1", "2", "3"])] == ["c", "b", "a"]
    again = replayed(trace, asked, ["1", "2", "3"])
    assert [r.id for r in again] == ["c", "x", "y"]
    assert again[0].force == (9, 9)
    assert again[0].replay_depths == (4, 2)
    with pytest.raises(UsageError, match=r"2: its prompt is not among the 3 recorded in t\.json"):
        traced(trace, [Request("b", (3,)), Request("b", (3,))], ["1", "2"])
    other = [Request("b", (3,), force=(7, 7))]
    with pytest.raises(UsageError, match="forces other tokens"):
        traced(trace, other, ["1"])


def test_without_prompts_there_are_no_requests_of_its_own() -> None:
    trace = trace_of(("0", None, (5, 6)))
    with pytest.raises(UsageError, match="holds no prompts"):
        own_requests(trace, ExitPolicy())
    assert [r.id for r in traced(trace, [Request("q", (8,))], ["1"])] == ["0"]


# The command and its files.

LINES = [
    {"prompt": [1, 2, 3], "max_new_tokens": 9},
    {"prompt": [4, 5], "max_new_tokens": 7},
    {"prompt": [6], "max_new_tokens": 1},
]
Q = 0.6
RANDOM = ["--set", "workload.source=random", "--set", "workload.prompt_tokens=4"]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ids_file(tmp_path_factory.mktemp("prompts") / "ids.jsonl", LINES)


def record(prompts: Path, *args: object) -> int:
    flags = ["--model", tiny.FIXTURE, "--set", f"workload.source={prompts}", *args]
    return main(["record", *map(str, flags)])


@pytest.fixture(scope="module")
def made(prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recordings") / "one"
    flags = ["--exit", f"cdf@{Q}", "--agreement", f"0.4,{Q}", "--out", out]
    assert record(prompts, *flags) == 0
    return out


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A recording that may be damaged."""
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(directory: Path, **changes: Any) -> None:
    """Another document, as one that was recorded so."""
    path = directory / "record.json"
    text = json.dumps({**json.loads(path.read_text()), **changes})
    path.write_text(to_json(sealed(Recording.model_validate_json(text))))


def test_a_recording_says_what_it_is(made: Path) -> None:
    assert {p.name for p in made.iterdir()} == {"record.json", "signals.npz"}
    recorded = read_recording(made)
    document = recorded.document
    assert document.model.files.keys() >= {"config.json", "model.safetensors"}
    assert (document.exit.rule, document.exit.threshold, document.max_loops) == ("cdf", Q, 4)
    assert [r.prompt for r in document.requests] == [line["prompt"] for line in LINES]
    assert [len(r.tokens) for r in document.requests] == [9, 7, 1]
    assert document.signals.dtype == "float32"
    assert [s.shape for s in recorded.signals] == [(8, 4), (6, 4), (0, 4)]
    assert document.marks == []
    assert read_recording(made / "record.json").document == document
    text = (made / "record.json").read_text()
    assert sum('"prompt"' in line for line in text.splitlines()) == 3, "a request is one line"


def test_agreement_at_q_is_whole_and_elsewhere_is_told(made: Path) -> None:
    other, same = read_recording(made).document.agreement
    assert (same.threshold, same.equal, same.mean_difference) == (Q, 1.0, 0.0)
    assert other.tokens == 14
    assert other.equal is not None
    assert other.mean_depth_derived is not None
    assert same.mean_depth_live is not None
    assert other.mean_depth_derived <= same.mean_depth_live, "a lower threshold exits no later"


def test_the_recorded_tokens_are_those_of_a_plain_run(capsys: Capture, made: Path) -> None:
    """Recording changes nothing: `cdbench generate` gives the same."""
    lines = ids_file(made.parent / "again.jsonl", LINES)
    assert main(["generate", str(tiny.FIXTURE), "--ids-file", str(lines), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["requests"]
    flags = ["--ids-file", str(lines), "--exit", f"cdf@{Q}", "--json"]
    assert main(["generate", str(tiny.FIXTURE), *flags]) == 0
    live = json.loads(capsys.readouterr().out)["requests"]
    for request, found in zip(read_recording(made).document.requests, live, strict=True):
        assert request.tokens == found["tokens"]
        assert request.executed_depths == found["depths"]
    assert [r["depths"] for r in live] != [r["depths"] for r in plain]


def test_under_json_the_document_is_all_there_is(
    capsys: Capture, prompts: Path, tmp_path: Path
) -> None:
    flags = ["--exit", "latent-diff@0.5", "--agreement", "none", "--json", "--out", tmp_path / "a"]
    assert record(prompts, *flags) == 0
    out, err = capsys.readouterr()
    document = Recording.model_validate_json(out)
    assert document == read_recording(tmp_path / "a").document
    assert document.agreement == []
    assert err == ""


def test_an_interval_to_wait_for_is_dropped(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    flags = ["--exit", f"cdf@{Q}", "--agreement", "none", "--set", "repeats.interval=0.02"]
    assert record(prompts, *flags, "--out", out) == 0
    config = json.loads((out / "record.json").read_text())["config"]
    assert config["repeats"] == {"blocks": 6, "max_seconds": None, "interval": None}


def test_random_weights_are_marked(capsys: Capture, prompts: Path, tmp_path: Path) -> None:
    flags = ["--exit", "cdf@0.5", "--weights", "random:1", "--dtype", "float64"]
    assert record(prompts, *flags, "--out", tmp_path / "a") == 0
    assert "MARK      random weights (seed 1)" in capsys.readouterr().out
    document = read_recording(tmp_path / "a").document
    assert (document.signals.dtype, document.weight_seed) == ("float64", 1)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--exit", "none"], "no signal to record"),
        (["--exit", "fixed:2"], "no signal to record"),
        (["--exit", "cdf@0.5", "--agreement", "0.4,two"], "not all are numbers"),
        (["--exit", "cdf@0.5", "--agreement", "0.4,1.5"], "out of range"),
        (["--exit", "cdf@0.5", "--agreement", "0.4,0.4"], "listed twice"),
        (["--exit", "cdf@0.5", "--agreement", "0.4,0.40"], "listed twice"),
        (["--exit", "cdf@0.5", "--agreement", ""], "no finite thresholds"),
        (["--exit", "cdf@0.5", "--agreement", " , "], "no finite thresholds"),
        (["--exit", "cdf@0.5", "--agreement", "nan"], "no finite thresholds"),
        (["--exit", "latent-diff@0.5", "--agreement", "inf"], "no finite thresholds"),
        (["--exit", "act@0.5"], "needs a halting mean"),
        (["--exit", "cdf@0.5", "--set", "workload.depths=full"], "is not recorded but drawn"),
        ([*RANDOM, "--exit", "cdf@0.5"], "random token ids are no text"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_it_runs(
    capsys: Capture, prompts: Path, tmp_path: Path, flags: list[str], why: str
) -> None:
    assert record(prompts, *flags, "--out", tmp_path / "a") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert why in err
    assert not (tmp_path / "a").exists()


def test_a_refused_request_leaves_nothing(capsys: Capture, prompts: Path, tmp_path: Path) -> None:
    flags = ["--exit", "cdf@0.5", "--set", "kv.budget_bytes=5000", "--out", tmp_path / "a"]
    assert record(prompts, *flags) == 2
    assert "kv budget: 5,000 bytes" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("when", ["_serve", "_agreement", "_pack"])
def test_an_interrupted_recording_leaves_nothing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, prompts: Path, tmp_path: Path, when: str
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_record, when, interrupt)
    flags = ["--exit", "cdf@0.5", "--agreement", "0.4", "--json", "--out", tmp_path / "a"]
    assert record(prompts, *flags) == 130
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_trace_cannot_be_recorded_again(
    capsys: Capture, made: Path, prompts: Path, tmp_path: Path
) -> None:
    assert record(prompts, "--exit", f"trace:{made}", "--out", tmp_path / "a") == 2
    assert "nothing new is seen" in capsys.readouterr().err
    assert record(prompts, "--exit", "cdf@0.5", "--out", made) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "recording"}', '{"kind": "recording", "requests": 1}']
)
def test_a_damaged_document_is_refused(copy: Path, text: str) -> None:
    (copy / "record.json").write_text(text)
    with pytest.raises(UsageError):
        read_recording(copy)
    with pytest.raises(UsageError):
        load_exit_trace(parse_exit(f"trace:{copy}"))


def test_a_document_with_a_token_missing_is_refused(copy: Path) -> None:
    requests = json.loads((copy / "record.json").read_text())["requests"]
    requests[0]["tokens"].pop()
    change(copy, requests=requests)
    with pytest.raises(UsageError, match="not of one length"):
        read_recording(copy)


# Replaying it.


def test_a_trace_at_q_has_the_recorded_depths_and_at_x_those_derived(made: Path) -> None:
    recorded = read_recording(made)
    for text in (f"trace:{made}", f"trace:{made}@{Q}", f"trace:{made}/record.json"):
        trace = load_exit_trace(parse_exit(text))
        assert str(trace.spec) == f"cdf@{Q}"
        assert trace.derived_from is None
        for found, request in zip(trace.requests, recorded.document.requests, strict=True):
            assert list(found.executed_depths) == request.executed_depths
            assert list(found.prompt or ()) == request.prompt
    trace = load_exit_trace(parse_exit(f"trace:{made}@0.4"))
    assert (str(trace.spec), trace.derived_from) == ("cdf@0.4", Q)
    assert "approximate" in trace.origin
    for found, depths in zip(trace.requests, recorded.depths(0.4), strict=True):
        assert list(found.executed_depths) == [4, *depths.executed.tolist()]
        assert list(found.requested_depths) == [4, *depths.requested.tolist()]
    for found, signals in zip(trace.requests, recorded.signals, strict=True):
        policy = dataclasses.replace(recorded.policy, threshold=0.4)
        wanted = [loop_by_loop(line, policy) for line in signals.tolist()]
        assert list(zip(found.executed_depths, found.requested_depths, strict=True))[1:] == wanted
    with pytest.raises(UsageError, match=r"threshold 1\.5 is out of range"):
        load_exit_trace(parse_exit(f"trace:{made}@1.5"))


def generate(capsys: Capture, *args: object) -> tuple[int, str, str]:
    code = main(["generate", str(tiny.FIXTURE), *map(str, args)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("mode", ["cdb", "lockstep"])
def test_generate_replays_a_recording_with_its_own_prompts(
    capsys: Capture, made: Path, mode: str
) -> None:
    for threshold in (Q, 0.4):
        flags = ["--exit", f"trace:{made}@{threshold}", "--mode", mode, "--kv", "shared", "--json"]
        code, out, err = generate(capsys, *flags)
        assert code == 0, err
        document = json.loads(out)
        assert document["config"]["exit"] == f"cdf@{threshold}"
        recorded = load_exit_trace(parse_exit(f"trace:{made}@{threshold}"))
        for request, found in zip(recorded.requests, document["requests"], strict=True):
            assert found["tokens"] == list(request.tokens)
            assert found["depths"] == list(request.executed_depths)
    _, out, _ = generate(capsys, "--exit", f"trace:{made}@0.4")
    assert "depthsarederivedforcdf@0.4" in "".join(out.split())


def test_a_replay_of_something_else_is_refused(capsys: Capture, made: Path, tmp_path: Path) -> None:
    other = ids_file(tmp_path / "other.jsonl", [{"prompt": [1, 2, 4]}])
    derived, replay = f"trace:{made}@0.4", ["--exit", f"trace:{made}"]
    for flags, why in (
        (["--exit", f"trace:{made}", "--ids-file", other], "is not among the 3 recorded"),
        (["--exit", derived, "--min-loops", 2], "exit.min_loops: 2 is given"),
        (["--exit", derived, "--exit-lag", 1], "exit.lag: 1 is given"),
        # What would be shown and not done: depths are executed as they were recorded.
        ([*replay, "--min-loops", 2], "exit.min_loops: 2 is given"),
        ([*replay, "--exit-lag", 1], "exit.lag: 1 is given"),
        ([*replay, "--first-token", "select"], "first_token: select is not what"),
        ([*replay, "--max-new-tokens", 3], "--max-new-tokens: means nothing"),
        ([*replay, "--ignore-eos"], "--ignore-eos: means nothing"),
        ([*replay, "--stop", "x"], "--stop: means nothing"),
        (["--exit", derived, "--max-loops", 3], "was recorded at 4 loops"),
        (["--exit", f"trace:{made}@1.5"], "out of range"),
    ):
        code, out, err = generate(capsys, *flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert why in err


def test_what_a_replay_has_of_its_own_may_be_said_again(capsys: Capture, made: Path) -> None:
    """A configuration that was recorded with is also replayed with."""
    again = ["--min-loops", 1, "--exit-lag", 0, "--max-loops", 4, "--first-token", "full"]
    code, out, err = generate(capsys, "--exit", f"trace:{made}", *again, "--json")
    assert code == 0, err
    config = json.loads(out)["config"]
    assert (config["min_loops"], config["exit_lag"], config["max_new_tokens"]) == (1, 0, None)


def test_a_run_is_refused_before_it_measures(capsys: Capture, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--exit", f"trace:{made}", "--set", "workload.source=trace", "--work", "equal"]
    for key in ("exit.min_loops=3", "exit.lag=1", "exit.max_loops=3", "first_token=select"):
        given = ["run", "--model", str(tiny.FIXTURE), *flags, "--set", key, "--out", str(out)]
        assert main(given) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not out.exists()


def test_a_replay_on_other_files_says_so(capsys: Capture, copy: Path) -> None:
    document = json.loads((copy / "record.json").read_text())
    change(
        copy,
        model={**document["model"], "files": {"config.json": "0" * 64}},
        marks=["random weights (seed 1): depths mean nothing"],
    )
    code, _, err = generate(capsys, "--exit", f"trace:{copy}", "--json")
    assert code == 0
    assert "recorded on other files" in err
    assert "random weights (seed 1)" in err


def test_synthetic_depths_and_a_trace_contradict_each_other() -> None:
    assert parse_config({"workload": {"depths": "serial:0.50"}}).workload.depths == "serial:0.5"
    with pytest.raises(UsageError, match=r"workload\.depths: full beside a trace"):
        parse_config({"workload": {"depths": "full"}, "exit": "trace:somewhere"})
