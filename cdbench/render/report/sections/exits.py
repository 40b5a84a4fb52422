"""Where tokens exit: by task, and by position in the output."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.bench.repeats import complete_blocks
from cdbench.metrics.trace import RequestTrace
from cdbench.render.exit_report import exit_tables
from cdbench.render.report.parts import Folded, Part, Pictures, Plot, Prose, Section, tables
from cdbench.render.report.plots.depth_by_position import depth_by_position, mean_by_position
from cdbench.render.report.plots.depth_by_task import depth_by_task
from cdbench.render.report.source import ReportRun

ADAPTIVE = ("cdb", "lockstep")


def exits(run: ReportRun) -> Section:
    """Histograms of every adaptive mode whose depths are its own."""
    result = run.result
    shown, alike = _modes(run)
    parts: list[Part] = []
    if shown:
        where = "in the live pass" if result.modes[shown[0]].live else "in the timed runs"
        words = [f"Executed depths of later tokens {where}; a first token runs at full depth."]
        if alike:
            words.append(f"{', '.join(alike)} has the same histograms as {shown[0]}.")
        parts.append(Prose(tuple(words), muted=True))
    plots: list[Plot] = []
    for mode in shown:
        by_task = depth_by_task(result, mode, run.styles[mode])
        by_position = _by_position(run, mode)
        plots += [plot for plot in (by_task, by_position) if plot is not None]
    if plots:
        parts.append(Pictures(tuple(plots)))
    elif any(result.modes[mode].live for mode in ADAPTIVE if mode in result.modes):
        parts.append(Prose(("No later token was generated, so there is no histogram.",)))
    else:
        parts.append(Prose(("No adaptive mode ran: every token took all of its mode's loops.",)))
    if result.exits is not None:
        means, *pairs = exit_tables(result.exits)
        parts += tables(means)
        parts += (Folded("Do tasks exit alike? Every pair", tables(*pairs)),) if pairs else ()
    return Section("exits", "Exit depths", tuple(parts))


def _modes(run: ReportRun) -> tuple[list[str], list[str]]:
    """Adaptive modes to show, and those whose histograms are the first one's in every task."""
    modes = run.result.modes
    having = [name for name in ADAPTIVE if name in modes and any(modes[name].depth_histogram or [])]
    first = modes[having[0]] if having else None
    alike = [
        name
        for name in having[1:]
        if first is not None
        and modes[name].depth_histogram == first.depth_histogram
        and modes[name].depth_histogram_by_task == first.depth_histogram_by_task
    ]
    return [name for name in having if name not in alike], alike


def _by_position(run: ReportRun, mode: str) -> Plot | None:
    found, requests = run.result.modes[mode], _requests(run, mode)
    if requests:
        return depth_by_position(requests, found.max_loops, mode, run.styles[mode])
    return mean_by_position(found.mean_depth_by_position, mode, run.styles[mode])


def _requests(run: ReportRun, mode: str) -> Sequence[RequestTrace]:
    """Those that the run's own histograms are of: the live pass, or else the first timed run."""
    if run.raw is None:
        return ()
    if mode in run.raw.passes:
        return run.raw.passes[mode].results
    timed = [r for r in complete_blocks(run.raw.repeats) if r.trace.mode == mode]
    return timed[0].trace.requests if timed else ()
