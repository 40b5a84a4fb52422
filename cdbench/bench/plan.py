"""What a run will do: models loaded, modes resolved, and the one engine set-up all modes share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdbench import resources
from cdbench.config import RunConfig
from cdbench.errors import UsageError
from cdbench.evals.tasks import Task, load_task
from cdbench.grammar import ExitSpec, Mode, parse_exit
from cdbench.models.loading import LoadedModel, load_model
from cdbench.runtime.core import ExitPolicy, LaunchObserver
from cdbench.runtime.engine import Engine, EngineConfig
from cdbench.runtime.exits import RULES, check_policy
from cdbench.workloads.exit_trace import ExitTrace, load_exit_trace


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

    def subject(self, mode: Mode, label: str | None = None) -> Subject:
        """The row of a mode whose depth is known."""
        if mode.dense is not None:
            model, policy, loops = self.dense[mode.dense], ExitPolicy(), 1
        else:
            model = self.model
            policy = self.policy if mode.adaptive else ExitPolicy()
            loops = mode.depth if isinstance(mode.depth, int) else self.max_loops
        return Subject(label or str(mode), mode, model, policy, loops)

    def engine(self, subject: Subject, observer: LaunchObserver | None = None) -> Engine:
        """A fresh engine for a row; all rows have the same sizes, layout and KV budget."""
        sizes = self.config.engine
        assert isinstance(sizes.coda_min_rows, int), "auto is refused by the configuration"
        settings = EngineConfig(
            mode=str(subject.mode),
            max_residents=sizes.max_residents,
            width=sizes.width,
            kv_layout=self.config.kv.layout,
            kv_budget_bytes=self.config.kv.budget_bytes,
            max_loops=None if subject.mode.dense else self.max_loops,
            prefill_tokens=sizes.prefill_tokens,
            coda_min_rows=sizes.coda_min_rows,
            min_free_residents=sizes.min_free_residents,
        )
        model = subject.model
        detokenize = None if model.tokenizer is None else model.decode
        return Engine(model.network, settings, detokenize=detokenize, observer=observer)


def make_plan(config: RunConfig) -> Plan:
    """Load and check everything a run needs. Raises UsageError before anything has run."""
    model = load_model(
        config.model, dtype=config.dtype, device=config.device, weight_seed=config.weight_seed
    )
    max_loops = config.exit.max_loops or model.network.dims.max_loops
    _check_loops(model, max_loops)
    spec, notes = _exit_spec(config, model)
    trace = _trace(spec, max_loops)
    policy = exit_policy(config, spec if trace is None else trace.spec)
    if trace is not None:
        policy = replace(policy, min_loops=trace.min_loops, lag=trace.lag)
    check_policy(policy, model.network.dims, max_loops)
    modes = config.resolved_modes
    dense = {
        mode.dense: _load_dense(mode.dense, config, model)
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
        notes=tuple(notes),
    )
    for mode in modes:  # so that an impossible mode is found before the first one has run
        if mode.depth != "auto":
            plan.engine(plan.subject(mode))
    return plan


def exit_policy(config: RunConfig, spec: ExitSpec) -> ExitPolicy:
    """The exit policy of a run: the rule with its own default threshold, floor and lag."""
    rule = RULES.get(spec.rule)
    threshold = spec.threshold
    if threshold is None and rule is not None:
        threshold = rule.default_threshold
    return ExitPolicy(spec.rule, threshold, config.exit.min_loops, config.exit.lag, spec.depth)


def _exit_spec(config: RunConfig, model: LoadedModel) -> tuple[ExitSpec, list[str]]:
    """The rule asked for, else the model card's; a bare checkpoint gets ``none``, said so."""
    if config.exit.spec is not None:
        return config.exit.spec, []
    spec = parse_exit(model.card.exit)
    if config.exit.threshold is not None:
        spec = replace(spec, threshold=config.exit.threshold)
    if spec.rule == "none" and model.network.dims.max_loops > 1:
        return spec, ["no exit rule was given and the model's card names none: nothing exits early"]
    return spec, []


def _trace(spec: ExitSpec, max_loops: int) -> ExitTrace | None:
    """The recorded run that rule ``trace`` names; its depths must fit this run's loops."""
    if spec.rule != "trace" or spec.trace_file is None:
        return None
    trace = load_exit_trace(replace(spec, trace_file=str(resources.find_file(spec.trace_file))))
    if trace.max_loops != max_loops:
        raise UsageError(
            f"trace {spec.trace_file}: was recorded with {trace.max_loops} loops, this run has "
            f"{max_loops}; set exit.max_loops"
        )
    return trace


def _check_loops(model: LoadedModel, max_loops: int) -> None:
    own = model.network.dims.max_loops
    if max_loops > own:
        raise UsageError(
            f"exit.max_loops: {max_loops} is above the {own} loops of {model.name}; lower it"
        )


def _load_dense(name: str, config: RunConfig, looped: LoadedModel) -> LoadedModel:
    dense = load_model(
        name, dtype=config.dtype, device=config.device, weight_seed=config.weight_seed
    )
    loops = dense.network.dims.max_loops
    if loops > 1:
        raise UsageError(f"mode 'dense:{name}': {name} runs {loops} loops; name a dense model")
    if "live" in config.work and dense.tokenizer is None and looped.tokenizer is not None:
        raise UsageError(f"mode 'dense:{name}': has no tokenizer.json, so it cannot read the tasks")
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
