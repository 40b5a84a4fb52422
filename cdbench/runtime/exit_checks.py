"""Which exit policies a model can run, and what is said of one that it cannot."""

from __future__ import annotations

import difflib

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.runtime.core import ExitPolicy
from cdbench.runtime.exit_rule import ExitRule, Needs
from cdbench.runtime.exits import LACKS, RULES, LookaheadCalls, suits


def check_policy(policy: ExitPolicy, dims: ModelDims, max_loops: int) -> None:
    """Raise UsageError where this rule, threshold or floor cannot be had on this model."""
    rule = RULES.get(policy.rule)
    if rule is None:
        near = difflib.get_close_matches(policy.rule, RULES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}"
        raise UsageError(f"exit rule {policy.rule!r}: unknown; {hint}")
    if not suits(rule, dims):
        raise UsageError(
            f"exit rule {rule.name!r}: needs {LACKS[rule.needs][1]}, which a {dims.model_type} "
            f"model lacks; choose one of {', '.join(n for n, r in RULES.items() if suits(r, dims))}"
        )
    _check_threshold(rule, policy.threshold)
    _check_loops(policy, max_loops)
    _check_lookahead(policy, dims, max_loops)


def _check_threshold(rule: ExitRule, threshold: float | None) -> None:
    allowed = rule.threshold_range
    if allowed is None:
        if threshold is not None:
            raise UsageError(f"exit rule {rule.name!r}: takes no threshold; drop it")
    elif threshold is None or threshold not in allowed:
        raise UsageError(
            f"exit rule {rule.name!r}: threshold {threshold} is out of range; use {allowed}"
        )


def _check_loops(policy: ExitPolicy, max_loops: int) -> None:
    if policy.lag not in (0, 1):
        raise UsageError(f"exit lag {policy.lag}: not available; use 0 or 1")
    if not 1 <= policy.min_loops <= max_loops:
        raise UsageError(f"min_loops {policy.min_loops}: out of range; use 1 to {max_loops} loops")
    if policy.rule == "fixed" and not (policy.depth and 1 <= policy.depth <= max_loops):
        raise UsageError(f"exit rule 'fixed:{policy.depth}': use a depth of 1 to {max_loops} loops")


def check_looks_ahead(rule: str) -> None:
    """Raise UsageError where no gate can look ahead for this rule."""
    needs = RULES[rule].needs
    if needs is Needs.NOTHING:
        raise UsageError(
            f"exit rule {rule!r}: has no signal to look ahead for; name one with a threshold"
        )
    if needs is Needs.LOGITS:
        raise UsageError(
            f"exit rule {rule!r}: reads out at every loop, which costs more than the late exit "
            "that looking ahead saves; use a rule on the gate, the states or the halting mass"
        )


def _check_lookahead(policy: ExitPolicy, dims: ModelDims, max_loops: int) -> None:
    gate = policy.lookahead
    if gate is None:
        if policy.rule == LookaheadCalls.name:
            raise UsageError(
                "exit rule 'lookahead': needs the gate that looks ahead; write lookahead:PATH"
            )
        return
    where = f"lookahead {gate.source}"
    check_looks_ahead(policy.rule)
    if policy.lag != 1:
        raise UsageError(
            f"{where}: at exit lag 0 the rule's own decision is on time and earlier than the "
            f"gate's; use --exit-lag 1, or --exit {policy.rule}@{policy.threshold:g}"
        )
    for what, trained, has in (
        ("rule", f"{gate.rule}@{gate.rule_threshold:g}", f"{policy.rule}@{policy.threshold:g}"),
        ("R", gate.max_loops, max_loops),
        ("state size", gate.gate.inputs - 1, dims.hidden_size),
    ):
        if trained != has:
            raise UsageError(
                f"{where}: {what} is {has} here, the gate was trained for {trained}; "
                "fit another with `cdbench predictor`"
            )
