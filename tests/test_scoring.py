"""Scored continuations: packed equals token by token equals the reference, and nothing leaks."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cdbench.errors import UsageError
from cdbench.models.base import StagedModel
from cdbench.runtime.attention.packed import PackedPlan
from cdbench.runtime.core import ExitPolicy, LaunchLog, Stage
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig
from cdbench.runtime.scoring import packs
from cdbench.runtime.scoring.continuation import Continuation, Scored
from cdbench.runtime.scoring.packed import PackedContexts, PackedScorer
from cdbench.runtime.scoring.score import score
from cdbench.runtime.scoring.setting import Setting
from cdbench.runtime.scoring.token_by_token import ScoringEngine
from tests import tiny
from tests.pressure import LAYOUTS, MODELS, VOCAB, check_cache, check_drained, draw_policy
from tests.reference import NEAR_TIE, continue_alone
from tests.reference import Continuation as Reference
from tests.test_official_fixtures import DTYPES, LOGPROB_TOLERANCE, OFFICIAL
from tests.test_official_fixtures import LAYOUTS as OFFICIAL_LAYOUTS

ALL_MODELS: dict[str, Callable[[], StagedModel]] = {**MODELS, "looped llama": tiny.looped_llama}
CDF = ExitPolicy("cdf", 0.6)
LONGEST = 6


@functools.cache
def model_of(name: str) -> StagedModel:
    return ALL_MODELS[name]()


def ids(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(length)]


def draw_continuations(rng: random.Random, name: str, most: int = 8) -> list[Continuation]:
    """Few contexts, some the beginning of others; continuations of one token and of several.

    Contexts, texts and rules come from one of three palettes, so that references recur.
    """
    palette = random.Random(f"{name} {rng.randrange(3)}")
    trunk = ids(palette, 8)
    contexts = [
        tuple(trunk[: palette.randint(1, 8)] + ids(palette, palette.randint(0, 3)))
        for _ in range(3)
    ]
    texts = [tuple(ids(palette, LONGEST)) for _ in range(2)]
    policies = [draw_policy(palette, model_of(name)) for _ in range(3)]
    return [
        Continuation(
            str(i),
            rng.choice(contexts),
            rng.choice(texts)[: rng.choice([1, rng.randint(1, LONGEST)])],
            rng.choice(policies),
        )
        for i in range(rng.randint(1, most))
    ]


def draw_config(rng: random.Random, **fixed: Any) -> EngineConfig:
    cap = rng.randint(1, 6)
    drawn: dict[str, Any] = {
        "mode": rng.choice(["cdb", "lockstep"]),
        "max_residents": cap,
        "width": rng.randint(1, cap),
        "prefill_tokens": rng.choice([1, 3, 8, 64]),
        "prefix_cache": rng.random() < 0.5,
        "first_token": rng.choice(["full", "select"]),
        "kv_layout": rng.choice(LAYOUTS),
    }
    return EngineConfig(**{**drawn, **fixed})


@functools.cache
def alone(
    model: StagedModel, item: Continuation, layout: str, loops: int | None, first_token: str
) -> Reference:
    """What the independent engine makes of it; the scores of a beginning are the beginning."""
    with torch.inference_mode():
        return continue_alone(model, item.request, layout, loops, first_token)


def assert_alone(
    model: StagedModel,
    continuations: Sequence[Continuation],
    scores: Sequence[Scored],
    config: EngineConfig,
) -> None:
    """Every score is the reference engine's; a near-tie of logits is no greedy choice's fault."""
    assert [s.id for s in scores] == [c.id for c in continuations]
    texts = [tuple(item.tokens) for item in continuations]
    for item, scored in zip(continuations, scores, strict=True):
        n = len(item.tokens)
        longest = max((t for t in texts if t[:n] == tuple(item.tokens)), key=len)
        whole = replace(item, id="", context=tuple(item.context), tokens=longest)
        known = alone(model, whole, config.kv_layout, config.max_loops, config.first_token)
        assert scored.error is None
        assert scored.executed_depths == known.executed[:n]
        assert scored.requested_depths == known.requested[:n]
        assert scored.logprobs == pytest.approx(known.logprobs[:n], abs=1e-9)
        places = zip(scored.greedy, item.tokens, known.likeliest, known.margins, strict=False)
        for greedy, token, likeliest, margin in places:
            assert greedy == (token == likeliest) or margin < NEAR_TIE


# Against the reference.


@settings(max_examples=12)
@given(name=st.sampled_from(list(ALL_MODELS)), seed=st.integers(0, 2**32))
def test_packs_are_exact(name: str, seed: int) -> None:
    """Any rule, floor and lag, packs cut anywhere, contexts shared or not, prefixes cached."""
    rng, model = random.Random(seed), model_of(name)
    continuations = draw_continuations(rng, name)
    config = draw_config(rng, kv_layout="per-loop")
    setting = Setting.of(model, config)
    fit = [c for c in continuations if setting.can_pack(c)]
    assert_alone(model, fit, score(model, config, fit, packed=True), config)


@settings(max_examples=12)
@given(name=st.sampled_from(list(ALL_MODELS)), seed=st.integers(0, 2**32))
def test_token_by_token_is_exact_under_every_layout(name: str, seed: int) -> None:
    rng, model = random.Random(seed), model_of(name)
    continuations, config = draw_continuations(rng, name, most=6), draw_config(rng)
    scores = score(model, config, continuations, packed=False)
    assert_alone(model, continuations, scores, config)


@settings(max_examples=12)
@given(name=st.sampled_from(list(ALL_MODELS)), seed=st.integers(0, 2**32))
def test_the_path_chosen_changes_nothing(name: str, seed: int) -> None:
    """Also in full-depth modes, with fewer loops, and where some continuations cannot be packed."""
    rng, model = random.Random(seed), model_of(name)
    continuations = draw_continuations(rng, name)
    config = draw_config(rng, mode=rng.choice(["cdb", "static"]), max_loops=4)
    chosen = score(model, config, continuations)
    forced = score(model, config, continuations, packed=False)
    assert_same(chosen, forced)


def assert_same(ours: Sequence[Scored], theirs: Sequence[Scored], tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert replace(a, logprobs=[]) == replace(b, logprobs=[])
        assert a.logprobs == pytest.approx(b.logprobs, abs=tolerance)


@pytest.mark.parametrize("packed", [None, False])
def test_static_at_d_runs_d_loops(packed: bool | None) -> None:
    model, config = tiny.ouro(), EngineConfig(mode="static@2")
    item = Continuation("a", [3, 4, 5], [7, 8, 9], CDF)
    (scored,) = score(model, config, [item], packed=packed)
    assert scored.executed_depths == [2, 2, 2]
    full = replace(item, exit=ExitPolicy())
    assert_alone(model, [full], [scored], EngineConfig(max_loops=2))


def test_drawn_states_are_those_of_generation() -> None:
    """``state_init: random`` keys a state by request and position, so that contexts differ."""
    model = model_of("huginn")
    config = EngineConfig(state_init="random")
    rng, context = random.Random(1), [1, 2, 3, 4]
    policy = ExitPolicy("latent-diff", 0.6)
    items = [Continuation(str(i), context, ids(rng, 5), policy) for i in range(4)]
    items.append(replace(items[0], id="again"))
    packed = score(model, config, items, packed=True)
    assert_same(packed, score(model, config, items, packed=False))
    assert packed[0].logprobs != pytest.approx(packed[-1].logprobs, abs=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["ouro", "huginn"])
def test_one_token_continuations_are_packed_under_every_layout_and_rule(
    name: str, layout: str
) -> None:
    """Nothing of them is run but their contexts, so nothing can be read at a wrong slot."""
    model, rng = model_of(name), random.Random(5)
    config = EngineConfig(kv_layout=layout, first_token="select", prefill_tokens=5)
    rules = [CDF] if name == "ouro" else []
    rules += [ExitPolicy("latent-diff", 0.6), ExitPolicy("confidence", 0.3, min_loops=2)]
    contexts = [ids(rng, n) for n in (1, 4, 7)]
    items = [
        Continuation(f"{i}/{j}/{k}", context, ids(rng, 1), policy)
        for i, context in enumerate(contexts)
        for j, policy in enumerate(rules)
        for k in range(3)
    ]
    assert_alone(model, items, score(model, config, items, packed=True), config)


# Where packs are not exact.


def refused(name: str, config: EngineConfig, policy: ExitPolicy) -> str:
    """The refusal of packs; and a proof that they would have been wrong."""
    model, rng = model_of(name), random.Random(2)
    items = [Continuation(str(i), ids(rng, 4), ids(rng, 6), policy) for i in range(4)]
    assert_alone(model, items, score(model, config, items), config)
    with torch.inference_mode():
        wrong = list(PackedScorer(Setting.of(model, config), items).run())
    with pytest.raises(AssertionError):
        assert_alone(model, items, wrong, config)
    with pytest.raises(UsageError) as error:
        score(model, config, items, packed=True)
    return str(error.value)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "per-loop"])
def test_packs_are_refused_where_loops_share_slots(layout: str) -> None:
    config = EngineConfig(kv_layout=layout)
    assert "one slot for several loops" in refused("ouro", config, CDF)


def test_packs_are_refused_where_a_rule_reads_out_through_coda_layers() -> None:
    message = refused("huginn", EngineConfig(), ExitPolicy("confidence", 0.3))
    assert "coda has layers" in message


def test_a_layout_with_as_many_slots_as_loops_is_packed_by_any_name() -> None:
    model, item = tiny.ouro(), Continuation("a", [1, 2], [3, 4, 5], CDF)
    config = EngineConfig(kv_layout="slots:4")
    assert_alone(model, [item], score(model, config, [item], packed=True), config)
    dense, shared = tiny.llama(), EngineConfig(kv_layout="shared")
    plain = replace(item, exit=ExitPolicy())
    assert_alone(dense, [plain], score(dense, shared, [plain], packed=True), shared)


# The official outputs.


# Huginn's cases are many and have eight loops: its layouts take dtypes in turn.
VARIANTS = [("ouro", layout, dtype) for layout in OFFICIAL_LAYOUTS for dtype in DTYPES]
VARIANTS += [
    ("huginn", layout, dtype)
    for layout, dtype in zip(OFFICIAL_LAYOUTS, ("float64", "float32", "float32"), strict=True)
]


@pytest.mark.parametrize(("name", "layout", "dtype"), VARIANTS)
def test_scores_are_those_of_the_official_code(name: str, layout: str, dtype: str) -> None:
    """Its forced cases, and its generated ones forced: those are greedy at every token."""
    official = OFFICIAL[name]
    model, cases = official.load(DTYPES[dtype]), official.cases(layout)
    if name == "huginn":
        cases = {key: case for key, case in cases.items() if case["forced"] or int(key) % 4 == 0}
    requests = [official.request(key, case) for key, case in cases.items()]
    items = [Continuation(r.id, r.prompt, cases[r.id]["tokens"], r.exit) for r in requests]
    config = EngineConfig(kv_layout=layout, prefix_cache=True, max_residents=128)
    scores = score(model, config, items)
    if dtype == "float64":
        # What was packed, now token by token too.
        setting = Setting.of(model, config)
        scores += score(model, config, [i for i in items if setting.can_pack(i)], packed=False)
    assert len(scores) >= len(items)
    for scored in scores:
        case = cases[scored.id]
        assert scored.executed_depths == case["depths"]
        assert scored.logprobs == pytest.approx(case["logprobs"], abs=LOGPROB_TOLERANCE)
        assert scored.all_greedy or case["forced"]


# What cannot be scored.


@pytest.mark.parametrize("packed", [None, False])
def test_only_the_continuation_at_fault_fails(packed: bool | None) -> None:
    model = tiny.ouro()
    shape = Engine(model, EngineConfig()).cache.shape
    config = EngineConfig(kv_budget_bytes=shape.budget_for(20))
    sound = Continuation("sound", [1, 2], [3, 4])
    cases = {
        "its context is empty": replace(sound, id="a", context=[]),
        "it has no tokens": replace(sound, id="b", tokens=[]),
        "exceed the model's 64 positions": replace(sound, id="c", context=[1] * 64),
        "outside the vocabulary": replace(sound, id="d", tokens=[VOCAB]),
        "raise the KV budget": replace(sound, id="e", context=[1] * 30),
    }
    told: list[int] = []
    scores = score(model, config, [*cases.values(), sound], packed=packed, advance=told.append)
    for reason, scored in zip(cases, scores, strict=False):
        assert reason in (scored.error or "")
        assert not scored.logprobs
        with pytest.raises(ValueError, match="has no score"):
            _ = scored.logprob
        with pytest.raises(ValueError, match="has no score"):
            _ = scored.all_greedy
    assert scores[-1].error is None
    assert scores[-1].logprob == sum(scores[-1].logprobs)
    assert sum(told) == len(scores)


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"exit": ExitPolicy("act", 0.5)}, {}, "halting mean"),
        ({"exit": ExitPolicy("trace")}, {}, "no depths for tokens that are scored"),
        ({"exit": ExitPolicy("cdf", 2.0)}, {}, "out of range"),
        ({"id": "b"}, {}, "occurs twice"),
        ({}, {"kv_layout": "odd"}, "KV layout 'odd'"),
        ({}, {"first_token": "odd"}, "first_token 'odd'"),
        ({}, {"mode": "static@9"}, "lower the depth"),
        ({}, {"state_init": "random"}, "starts from its prelude"),
    ],
)
def test_what_nothing_could_be_scored_under_is_refused(
    changes: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    item = replace(Continuation("a", [1, 2], [3, 4]), **changes)
    with pytest.raises(UsageError, match=message):
        score(tiny.ouro(), EngineConfig(**config), [Continuation("b", [1], [2]), item])


def test_nothing_is_scored_of_nothing() -> None:
    assert score(tiny.ouro(), EngineConfig(), []) == []


# What runs, and what is left behind.


def choices(contexts: int, each: int, tokens: int = 4) -> list[Continuation]:
    """Questions with several answers: contexts of equal and unequal lengths, each shared."""
    rng = random.Random(contexts)
    asked = [ids(rng, 5 + i % 3) for i in range(contexts)]
    return [
        Continuation(f"{i}/{j}", context, ids(rng, tokens), CDF)
        for i, context in enumerate(asked)
        for j in range(each)
    ]


def prefill_rows(log: LaunchLog, stage: Stage) -> int:
    return sum(record.prefill_rows for record in log.records if record.stage is stage)


@pytest.mark.parametrize("prefill_tokens", [3, 16, 64])
def test_a_packed_context_is_prefilled_once_even_where_packs_cut_it(prefill_tokens: int) -> None:
    model, items, log = tiny.ouro(), choices(3, 9), LaunchLog()
    config = EngineConfig(prefill_tokens=prefill_tokens)
    scores = score(model, config, items, packed=True, observer=log)
    distinct = sum(len(context) for context in {tuple(item.context) for item in items})
    assert prefill_rows(log, Stage.CORE) == distinct * model.dims.max_loops
    assert max(record.prefill_rows for record in log.records) <= prefill_tokens
    core = [record for record in log.records if record.stage is Stage.CORE]
    loops = sum(sum(scored.executed_depths[1:]) for scored in scores)
    assert sum(record.decode_rows for record in core) == loops
    assert max(record.decode_rows for record in core) <= prefill_tokens
    assert_same(scores, score(model, config, items, packed=False))


def test_token_by_token_a_cached_context_is_prefilled_once() -> None:
    model, items, log = tiny.ouro(), choices(7, 3), LaunchLog()
    config = EngineConfig(prefix_cache=True, max_residents=4, kv_layout="shared")
    score(model, config, items, observer=log)
    contexts = {tuple(item.context) for item in items}
    # Whoever finds its context cached still runs the last position, for the readout.
    rows = sum(map(len, contexts)) + len(items) - len(contexts)
    assert prefill_rows(log, Stage.CORE) <= rows * model.dims.max_loops


def test_a_cached_beginning_is_not_run_again_in_a_later_pack() -> None:
    model, rng, log = tiny.ouro(), random.Random(3), LaunchLog()
    shots = ids(rng, 24)
    items = [Continuation(str(i), shots + ids(rng, 4), ids(rng, 5), CDF) for i in range(6)]
    config = EngineConfig(prefill_tokens=8, prefix_cache=True)
    assert_alone(model, items, score(model, config, items, packed=True, observer=log), config)
    # The first pack has two of them, and neither can wait for the other.
    rows = 2 * 28 + 4 * 4
    assert prefill_rows(log, Stage.CORE) <= rows * model.dims.max_loops


def test_a_pack_ends_when_its_last_token_has_exited() -> None:
    model, log = tiny.ouro(), LaunchLog()
    items = [replace(item, exit=ExitPolicy("cdf", 0.0)) for item in choices(4, 2)]
    score(model, EngineConfig(), items, packed=True, observer=log)
    core = [record for record in log.records if record.stage is Stage.CORE and record.decode_rows]
    assert [record.decode_rows for record in core] == [sum(item.fed for item in items)]


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_every_row_is_free_again(name: str, prefix_cache: bool) -> None:
    rng, model = random.Random(name), model_of(name)
    items = draw_continuations(rng, name, most=30)
    config = EngineConfig(prefix_cache=prefix_cache, prefill_tokens=9, max_residents=3)
    setting = Setting.of(model, config)
    scorer = PackedScorer(setting, [item for item in items if setting.can_pack(item)])
    with torch.inference_mode():
        scores = list(scorer.run())
    assert len(scores) == sum(len(pack.items) for pack in scorer.packs)
    assert scorer.cache.rows_in_use == 0
    assert scorer.contexts.residents.occupied_count == 0
    assert not any(cache.table.host.any() for cache in scorer.cache.stages.values())
    check_cache(scorer.cache)


def test_the_engine_is_drained_and_has_told_of_every_token() -> None:
    model, items = tiny.ouro(), choices(5, 2)
    engine = ScoringEngine(Setting.of(model, EngineConfig(max_residents=3)), None, None)
    results = {r.id: r for r in engine.run(item.request for item in items)}
    assert {key: len(r.tokens) for key, r in results.items()} == {
        key: len(greedy) for key, greedy in engine.greedy.items()
    }
    check_drained(engine)


@pytest.mark.parametrize("packed", [None, False])
@pytest.mark.parametrize("name", ["ouro", "huginn"])
def test_a_tight_budget_changes_nothing_and_is_kept(name: str, packed: bool | None) -> None:
    model = model_of(name)
    items = [replace(i, exit=ExitPolicy("latent-diff", 0.6)) for i in choices(4, 3, tokens=6)]
    roomy = EngineConfig(prefix_cache=True)
    shape = Setting.of(model, roomy).shape
    budget = shape.budget_for(max(item.positions for item in items) + 3)
    tight = replace(roomy, kv_budget_bytes=budget)
    assert_same(score(model, tight, items, packed=packed), score(model, roomy, items))
    pools = PackedScorer(Setting.of(model, tight), items).cache.stages.values()
    assert sum(c.pool.rows * c.pool.row_bytes for c in pools) <= budget


# Negative controls: each of these faults must be seen.


def faulty(
    items: list[Continuation], model: StagedModel, config: EngineConfig | None = None
) -> bool:
    """Whether packs now score otherwise than the engine does."""
    right, wrong = (score(model, config or EngineConfig(), items, packed=p) for p in (False, True))
    pairs = zip(right, wrong, strict=True)
    return any(a.logprobs != pytest.approx(b.logprobs, abs=1e-6) for a, b in pairs)


def test_not_settling_exited_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedScorer, "_settle", lambda self, tokens: None)
    assert faulty(choices(4, 2, tokens=6), tiny.ouro())


def test_reading_later_tokens_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PackedContexts.decode

    def wrong(self: PackedContexts, stage: Stage, *args: Any) -> Any:
        ctx = right(self, stage, *args)
        if isinstance(ctx._plan, PackedPlan):
            ctx._plan.bias = torch.zeros_like(ctx._plan.bias)
        return ctx

    monkeypatch.setattr(PackedContexts, "decode", wrong)
    assert faulty(choices(4, 2, tokens=6), tiny.ouro())


def test_sharing_a_context_across_rules_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``first_token: select`` a readout is one rule's alone."""
    monkeypatch.setattr(packs, "context_key", lambda item, setting: tuple(item.context))
    context, rng = [1, 2, 3, 4, 5], random.Random(8)
    items = [
        Continuation(str(t), context, ids(rng, 1), ExitPolicy("cdf", t)) for t in (0.1, 0.6, 0.9)
    ]
    assert faulty(items, tiny.ouro(), EngineConfig(first_token="select"))
