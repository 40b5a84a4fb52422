"""What a run will do: models loaded, modes resolved, and the one engine set-up all modes share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cdbench import resources
from cdbench.bench.once import Once, anew, model_key
from cdbench.bench.plan_notes import memory_notes, run_notes
from cdbench.bench.suites import found_anywhere, suite_for, suite_notes
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.evals.ranks import ALONE, Ranks
from cdbench.grammar import Mode
from cdbench.models.loading import LoadedModel, load_model
from cdbench.models.unrolled import unrolled
from cdbench.runtime.cache_shape import CacheShape, cache_shape
from cdbench.runtime.core import ExitPolicy, LaunchObserver
from cdbench.runtime.engine import Engine
from cdbench.runtime.engine_config import EngineConfig, check_model
from cdbench.runtime.exit_checks import check_policy
from cdbench.runtime.modes import mode_loops
from cdbench.workloads.exit_trace import ExitTrace, load_exit_trace
from cdbench.workloads.resolve import (
    engine_config,
    exit_policy,
    full_depth,
    kv_budget_bytes,
    kv_layout,
)
from cdbench.workloads.trace_fit import check_trace

if TYPE_CHECKING:  # seconds to import: only who asks questions needs it
    from cdbench.evals.suite import Suite
    from cdbench.evals.text import TextCodec

UNROLLED = "unrolled"
"""The dense model that is the looped one with a copy of its core for each loop."""


@dataclass(frozen=True)
class Subject:
    """One row of the result: a mode, on the model it runs.

    ``label`` is the mode as asked for; for ``static@auto``, ``mode`` has the depth chosen.
    """

    label: str
    mode: Mode
    model: LoadedModel
    policy: ExitPolicy
    max_loops: int

    @property
    def adaptive(self) -> bool:
        return self.mode.adaptive


@dataclass(frozen=True)
class Plan:
    """Everything resolved before anything runs."""

    config: RunConfig
    model: LoadedModel
    dense: dict[str, LoadedModel]
    policy: ExitPolicy
    max_loops: int
    suite: Suite | None
    modes: tuple[Mode, ...]
    trace: ExitTrace | None
    notes: tuple[str, ...]
    kv_layout: str
    kv_budget_bytes: int | None
    ranks: Ranks = ALONE

    @cached_property
    def codecs(self) -> dict[int, TextCodec]:
        """How each model reads and writes text, by the model's identity; read once for all modes.

        UsageError where one has no tokenizer.
        """
        from cdbench.evals.text import TextCodec

        return {id(model): TextCodec(model) for model in (self.model, *self.dense.values())}

    def subject(self, mode: Mode, label: str | None = None) -> Subject:
        """The row of a mode whose depth is known."""
        if mode.dense is not None:
            model, policy, loops = self.dense[mode.dense], ExitPolicy(), 1
        else:
            model = self.model
            policy = self.policy if mode.adaptive else ExitPolicy()
            loops = mode.depth if isinstance(mode.depth, int) else self.max_loops
        return Subject(label or str(mode), mode, model, policy, loops)

    def settings(
        self, subject: Subject, live: bool = True, residents: int | None = None
    ) -> EngineConfig:
        """How a row's engine runs; all rows have the same layout and KV budget.

        They have the same sizes as well, unless ``residents`` gives a row a cap of its own.
        """
        settings = engine_config(
            self.config,
            subject.mode,
            self.kv_layout,
            None if subject.mode.dense else self.max_loops,
            self.config.engine.max_residents,
            self.kv_budget_bytes,
            cache_prefixes=live,
        )
        if residents is None:
            return settings
        return replace(settings, max_residents=residents, width=residents, min_free_residents=None)

    def cache_shape(self, subject: Subject) -> CacheShape:
        """What one token keeps in a row's KV cache."""
        network = subject.model.network
        return cache_shape(network.dims, self.kv_layout, subject.max_loops, network.dtype)

    def engine(
        self,
        subject: Subject,
        observer: LaunchObserver | None = None,
        live: bool = True,
        residents: int | None = None,
    ) -> Engine:
        """A fresh engine for a row.

        A ``live`` one makes text and reuses prompt prefixes; one for timed work does neither.
        """
        model = subject.model
        detokenize = model.decode if live and model.tokenizer is not None else None
        settings = self.settings(subject, live, residents)
        return Engine(model.network, settings, detokenize=detokenize, observer=observer)


def make_plan(config: RunConfig, once: Once = anew) -> Plan:
    """Load and check everything a run needs. Raises UsageError before anything has run.

    ``once`` may keep what is loaded for the next plan.
    """
    config = found_anywhere(config)
    own = model_key(config)
    model = once(
        ("model", own),
        lambda: load_model(
            config.model,
            dtype=config.dtype,
            device=config.device,
            weight_seed=config.weight_seed,
            layers=config.layers,
        ),
    )
    max_loops = full_depth(config, model)
    trace = _trace(config, once)
    if trace is not None:
        check_trace(trace, config, model, max_loops)
    policy = exit_policy(config, model, trace)
    check_policy(policy, model.network.dims, max_loops)
    modes = config.resolved_modes
    dense = {
        mode.dense: _load_dense(mode.dense, config, model, max_loops, once)
        for mode in modes
        if mode.dense is not None
    }
    budget = kv_budget_bytes(config, model, len(modes))
    suite = suite_for(config, model, once)
    plan = Plan(
        config=config,
        model=model,
        dense=dense,
        policy=policy,
        max_loops=max_loops,
        suite=suite,
        modes=modes,
        trace=trace,
        notes=(
            *run_notes(config, model, policy, trace, once),
            *memory_notes(config, budget),
            *suite_notes(suite),
        ),
        kv_layout=kv_layout(config, model),
        kv_budget_bytes=budget,
    )
    _check_live(plan)
    for mode in modes:  # so that an impossible mode is found before the first one has run
        if mode.depth != "auto":
            mode_loops(mode, max_loops)
            subject = plan.subject(mode)
            check_model(plan.settings(subject), subject.model.network)
    return plan


def _check_live(plan: Plan) -> None:
    """Raise UsageError where the questions cannot be asked, before the first one is."""
    if "live" not in plan.config.work:
        return
    for codec in plan.codecs.values():
        codec.check()
    asked = len(plan.suite.questions) if plan.suite is not None else 0
    if Mode("static", depth="auto") in plan.modes and asked < 2:
        raise UsageError(
            "mode 'static@auto': needs one question to choose a depth on and another to judge "
            f"it on, there is {asked}; raise --limit"
        )


def _trace(config: RunConfig, once: Once) -> ExitTrace | None:
    """The recorded run that rule ``trace`` names."""
    spec = config.exit.spec
    if spec is None or spec.trace_file is None:
        return None
    found = replace(spec, trace_file=str(resources.find_file(spec.trace_file)))
    return once(("trace", found), lambda: load_exit_trace(found))


def _load_dense(
    name: str, config: RunConfig, looped: LoadedModel, max_loops: int, once: Once
) -> LoadedModel:
    if name == UNROLLED:
        key = (UNROLLED, model_key(config), max_loops)
        twin = once(key, lambda: unrolled(looped.network, max_loops))
        return replace(looped, name=UNROLLED, network=twin, files=())
    dense = once(
        ("dense", name, config.dtype, config.device, config.weights),
        lambda: load_model(
            name, dtype=config.dtype, device=config.device, weight_seed=config.weight_seed
        ),
    )
    loops = dense.network.dims.max_loops
    if loops > 1:
        raise UsageError(f"mode 'dense:{name}': {name} runs {loops} loops; name a dense model")
    if "live" in config.work and dense.tokenizer is None and looped.tokenizer is not None:
        raise UsageError(f"mode 'dense:{name}': has no tokenizer.json, so it cannot read the tasks")
    one_has_none = dense.tokenizer is None or looped.tokenizer is None
    if one_has_none and dense.network.dims.vocab_size != looped.network.dims.vocab_size:
        raise UsageError(
            f"mode 'dense:{name}': has another vocabulary than {looped.name}, and without both "
            "tokenizer.json the workload cannot be carried over; add them, or drop the mode"
        )
    return dense
