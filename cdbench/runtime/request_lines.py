"""What a request asks for, written into its resident's lines on admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdbench.runtime.core import ExitPolicy, Request
from cdbench.runtime.exit_rule import Needs
from cdbench.runtime.exits import RULES
from cdbench.runtime.outputs import widened
from cdbench.runtime.rule_memory import RULE_INDEX
from cdbench.runtime.sampling import stream_key

if TYPE_CHECKING:
    from cdbench.runtime.residents import Residents

NOT_FORCED = -1
NO_STOP = -1
FULL_MASS = 1.0
"""Halting mass at which a readout is complete, but under rule ``act``, whose threshold it is."""


def write_policy(res: Residents, r: int, policy: ExitPolicy) -> None:
    """When its tokens may leave."""
    rule = RULES[policy.rule]
    res.rule[r] = RULE_INDEX[policy.rule]
    res.reads_out[r] = rule.needs is Needs.LOGITS
    res.any_reads_out |= rule.needs is Needs.LOGITS
    res.lag[r] = policy.lag
    res.min_loops[r] = policy.min_loops
    res.any_delay |= policy.lag > 0 or policy.min_loops > 1
    res.host_threshold[r] = policy.threshold if policy.threshold is not None else 0.0
    res.host_halt_at[r] = FULL_MASS
    if rule.needs is Needs.HALTING and policy.threshold is not None:
        res.host_halt_at[r] = policy.threshold
    res.memories.hold(int(res.rule[r]))
    res.foresight.admit(r, policy.lookahead)


def write_sampling(res: Residents, r: int, request: Request) -> None:
    """How its tokens are chosen, and which of them end it."""
    params = request.sampling
    res.temperature[r], res.top_k[r], res.top_p[r] = (
        params.temperature,
        params.top_k,
        params.top_p,
    )
    res.stream[r] = stream_key(request.id, params.seed)
    stops = set() if request.ignore_eos or request.force is not None else request.stop_ids
    res.has_stop_strings[r] = bool(request.stop_strings) and request.force is None
    if len(stops) > res.stop_ids.shape[1]:
        res.stop_ids = widened(res.stop_ids, len(stops), NO_STOP)
    res.stop_ids[r] = NO_STOP
    res.stop_ids[r, : len(stops)] = sorted(stops)
    res.any_stop_ids |= bool(stops)
    res.any_stop_strings |= bool(res.has_stop_strings[r])


def write_scripts(res: Residents, r: int, request: Request) -> None:
    """Its forced tokens and fixed or replayed depths, aligned with its outputs."""
    res.forced[r] = NOT_FORCED
    res.scripted_depth[r] = 0
    if request.force is not None:
        res.forced[r, : len(request.force)] = request.force
    if request.replay_depths is not None:
        res.scripted_depth[r, : len(request.replay_depths)] = request.replay_depths
    elif request.exit.rule == "fixed":
        res.scripted_depth[r] = max(request.exit.depth or 0, request.exit.min_loops)
