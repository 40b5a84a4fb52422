"""Core launches that prompt chunks share with decode rows: which part of their time is whose.

A launch of b decode rows and n prompt tokens is split in the proportion in which the two would have
taken apart, both from the stage curves:

    share of the prompt = t_chunk(n) / (t_chunk(n) + t_core(b, context))

t_prefill(n) is that of all launches of a chunk: prelude, R loops, and the coda's layers where it
has some. One loop's part of it, t_chunk(n), is taken to be its part of their FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cdbench.metrics.curves import CurveStage, MeasuredCurves
from cdbench.metrics.trace import LaunchTrace, RunTrace
from cdbench.metrics.work import ModelWork


def mixed(trace: RunTrace) -> list[LaunchTrace]:
    """The launches of a run that hold both prompt and decode rows."""
    return [x for x in trace.launches if x.prefill_rows > 0 and x.decode_rows > 0]


def with_prefill_shares(
    trace: RunTrace, curves: MeasuredCurves, work: ModelWork, max_loops: int, rule_computes: bool
) -> RunTrace:
    """The trace with what splits its mixed launches; as it is where the curves do not reach them.

    ``max_loops``: loops of the prompts that were measured. ``rule_computes``: decode rows pay for a
    signal and a test in each loop.
    """
    core: CurveStage = "core_with_exit" if rule_computes else "core"
    widest = max((x.decode_rows for x in mixed(trace)), default=0)
    if widest > curves.widest(core):
        return trace
    return replace(trace, prefill_share=_share(curves, work, max_loops, core))


def _share(
    curves: MeasuredCurves, work: ModelWork, max_loops: int, core: CurveStage
) -> Callable[[LaunchTrace], float]:
    loop = work.core / (work.prelude + max_loops * work.core + work.coda_body)
    largest, prompt = curves.widest("prefill"), curves.contexts("prefill")[0]

    def share(launch: LaunchTrace) -> float:
        # Larger chunks than the largest measured take time in proportion.
        tokens = min(launch.prefill_rows, largest)
        whole_s = curves.launch_s("prefill", tokens, prompt) * launch.prefill_rows / tokens
        decode_s = curves.launch_s(core, launch.decode_rows, launch.context)
        return loop * whole_s / (loop * whole_s + decode_s)

    return share
