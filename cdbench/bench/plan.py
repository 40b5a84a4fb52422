"""What a run will do: models loaded, modes resolved, and the one engine set-up all modes share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdbench import resources
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.evals.tasks import Task, load_task
from cdbench.grammar import Mode, parse_depths
from cdbench.models.loading import LoadedModel, load_model
from cdbench.models.unrolled import unrolled
from cdbench.runtime.core import ExitPolicy, LaunchObserver
from cdbench.runtime.engine import Engine, EngineConfig, check_model
from cdbench.runtime.exits import check_policy
from cdbench.runtime.modes import mode_loops
from cdbench.workloads.exit_trace import ExitTrace, load_exit_trace, trace_notes
from cdbench.workloads.resolve import (
    check_trace_depth,
    engine_config,
    exit_policy,
    full_depth,
    kv_budget_bytes,
    kv_layout,
)
from cdbench.workloads.synthetic_depths import mark

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
    tasks: tuple[Task, ...]
    modes: tuple[Mode, ...]
    trace: ExitTrace | None
    notes: tuple[str, ...]
    kv_layout: str
    kv_budget_bytes: int | None

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


def make_plan(config: RunConfig) -> Plan:
    """Load and check everything a run needs. Raises UsageError before anything has run."""
    model = load_model(
        config.model,
        dtype=config.dtype,
        device=config.device,
        weight_seed=config.weight_seed,
        layers=config.layers,
    )
    max_loops = full_depth(config, model)
    trace = _trace(config, max_loops)
    policy = exit_policy(config, model, trace)
    check_policy(policy, model.network.dims, max_loops)
    modes = config.resolved_modes
    dense = {
        mode.dense: _load_dense(mode.dense, config, model, max_loops)
        for mode in modes
        if mode.dense is not None
    }
    plan = Plan(
        config=config,
        model=model,
        dense=dense,
        policy=policy,
        max_loops=max_loops,
        tasks=_tasks(config, model),
        modes=modes,
        trace=trace,
        notes=_notes(config, model, policy, trace),
        kv_layout=kv_layout(config, model),
        kv_budget_bytes=kv_budget_bytes(config, model, len(modes)),
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
    if plan.model.tokenizer is None:
        raise UsageError(
            f"model {plan.model.name!r}: has no tokenizer.json, so it cannot read the tasks; "
            "run work: [equal] on a workload.source of ids"
        )
    asked = sum(len(task.documents) for task in plan.tasks)
    if Mode("static", depth="auto") in plan.modes and asked < 2:
        raise UsageError(
            "mode 'static@auto': needs one question to choose a depth on and another to judge "
            f"it on, there is {asked}; raise --limit"
        )


def _trace(config: RunConfig, max_loops: int) -> ExitTrace | None:
    """The recorded run that rule ``trace`` names; its depths must fit this run's loops."""
    spec = config.exit.spec
    if spec is None or spec.trace_file is None:
        return None
    trace = load_exit_trace(replace(spec, trace_file=str(resources.find_file(spec.trace_file))))
    check_trace_depth(trace, max_loops)
    return trace


def _notes(
    config: RunConfig, model: LoadedModel, policy: ExitPolicy, trace: ExitTrace | None
) -> tuple[str, ...]:
    notes = []
    if config.exit.spec is None and policy.rule == "none":
        notes.append(f"no exit rule was given and {model.name} names none: nothing exits early")
    if config.sampling.temperature > 0:
        chosen = config.sampling
        notes.append(
            f"sampled, not greedy: temperature {chosen.temperature:g}, top_k {chosen.top_k}, "
            f"top_p {chosen.top_p:g}, seed {chosen.seed}"
        )
    if model.layers is not None:
        notes.append(f"layers {model.layers} in place of the model's own: for timing only")
    if config.first_token == "select":
        notes.append("first tokens are read from the loop their rule selects; no loop is saved")
    if config.state_init == "random":
        notes.append(f"initial states are random (seed {config.sampling.seed})")
    if trace is not None:
        notes += trace_notes(trace, model)
        if trace.derived_from is not None:
            notes.append(f"depths are {trace.origin}")
    depths = parse_depths(config.workload.depths)
    if depths.synthetic:
        notes.append(mark(depths, config.workload.seed))
    return tuple(notes)


def _load_dense(name: str, config: RunConfig, looped: LoadedModel, max_loops: int) -> LoadedModel:
    if name == UNROLLED:
        twin = unrolled(looped.network, max_loops)
        return replace(looped, name=UNROLLED, network=twin, files=())
    dense = load_model(
        name, dtype=config.dtype, device=config.device, weight_seed=config.weight_seed
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


def _tasks(config: RunConfig, model: LoadedModel) -> tuple[Task, ...]:
    if "live" not in config.work and config.workload.source != "demo":
        return ()
    names = config.tasks if config.tasks is not None else model.card.tasks
    if not names and (config.workload.source == "demo" or "live" in config.work):
        raise UsageError(
            f"tasks: none named, and the card of {model.name} has none; choose from "
            "`cdbench list tasks`, or run work: [equal] on a workload.source of your own"
        )
    return tuple(load_task(name, config.limit) for name in names)
