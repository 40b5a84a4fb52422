"""What a run prints, from its result alone: card, table, histogram, and what it means in words."""

from __future__ import annotations

from collections.abc import Iterator

from cdbench.render.formats import Kind, si_bytes
from cdbench.render.intervals import interval_cell
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.tasks_report import metric_words
from cdbench.schema import (
    Accuracy,
    Comparison,
    ExitSettings,
    Manifest,
    ModelFacts,
    ModeResult,
    Result,
    Workload,
)
from cdbench.stats.blocks import LEVEL, MIN_BLOCKS

ACCURACY_WORDS = {
    "within": "within 1 pt of static",
    "worse": "worse than static",
    "cannot tell": "cannot tell from static",
}


def model_lines(facts: ModelFacts, where: Manifest, exit_text: str) -> list[str]:
    """The static facts, before any number is measured."""
    device = where.device.name or where.cpu.model or "CPU"
    threads = f"{where.torch_threads} thread{'' if where.torch_threads == 1 else 's'}"
    attention = "" if facts.attention is None else f"attention {facts.attention}, "
    lines = [
        f"model     {facts.name} ({facts.model_type}), {facts.parameters:,} parameters, "
        f"up to {facts.max_loops} loops, cost ratio {facts.cost_ratio:.2f} (FLOPs of prelude and "
        f"coda / those of a loop), KV {si_bytes(facts.kv_bytes_per_token)} per token "
        f"({facts.kv_layout})",
        f"machine   {device}, {facts.device}, {facts.dtype}, "
        f"{attention}{threads}, torch {where.packages.get('torch')}",
        f"exit      {exit_text}",
        *(f"note      {note}" for note in facts.notes),
    ]
    if facts.random_weights_seed is not None:
        lines.append("RANDOM WEIGHTS: timings only; the text means nothing")
    return lines


def work_lines(workload: Workload, signalled: bool) -> list[str]:
    """What was timed, and what of it was replayed; empty where nothing was.

    ``signalled``: an adaptive mode ran a rule that computes a signal, replayed or not.
    """
    if not workload.requests:
        return []
    lines = [
        f"workload  {workload.requests} requests, {workload.prompt_tokens:,} prompt and "
        f"{workload.output_tokens or 0:,} output tokens, {workload.arrivals}, "
        f"sha256 {workload.hash[:12]}"
    ]
    paid = " (the exit rule still runs and is paid for)" if signalled else ""
    if workload.replayed:
        lines.append(
            f"replayed  {', '.join(workload.replayed)} of one recorded run, in every timed mode"
            + ("" if workload.synthetic else paid)
        )
    if workload.synthetic:
        lines.append(f"SYNTHETIC {workload.synthetic}{paid}")
    return lines


def exit_words(settings: ExitSettings, origin: str | None = None) -> str:
    """An exit policy in the words of ``--exit``; with where replayed depths come from."""
    name = settings.rule if settings.depth is None else f"{settings.rule}:{settings.depth}"
    at = "" if settings.threshold is None else f"@{settings.threshold:g}"
    if settings.lookahead is not None:
        name = f"{settings.lookahead} for {name}"
    words = f"{name}{at}, min_loops {settings.min_loops}, lag {settings.lag}"
    return words if origin is None else f"{words}; depths are {origin}"


def main_table(result: Result) -> Table:
    """Mode, accuracy, mean depth, tokens/s, end-to-end speed-ups with intervals, verdict."""
    overs = _baselines(result)
    columns = [
        Column("mode", align="left"),
        Column("accuracy", direction="up"),
        Column("mean depth", unit="loops", direction="down", priority=3),
        Column("tokens/s", direction="up", priority=1),
        *(
            Column(f"over {over}", direction="up", priority=4 if over.startswith("dense") else 0)
            for over in overs
        ),
        Column("accuracy verdict", align="left", priority=2),
    ]
    rows = [
        Row(
            (
                text(label, mode.note),
                _accuracy_cell(result, label),
                _depth_cell(mode),
                _rate_cell(mode),
                *(speedup_cell(result, label, over, "e2e") for over in overs),
                text(_verdict(result, label)),
            ),
            emphasis=mode.schedule == "cdb",
        )
        for label, mode in result.modes.items()
    ]
    return Table(tuple(columns), tuple(rows), notes=tuple(_table_notes(result)))


def is_random(result: Result) -> bool:
    """Whether the weights are random, so that no text or accuracy means anything."""
    return result.model is not None and result.model.random_weights_seed is not None


def signalled(result: Result) -> bool:
    """Whether an adaptive mode ran a rule with a signal of its own."""
    return any(
        mode.schedule in ("cdb", "lockstep") and mode.exit.rule not in ("none", "fixed", "trace")
        for mode in result.modes.values()
    )


def comparison(result: Result, mode: str, over: str, scope: str) -> Comparison | None:
    """The speed-up of one mode over another in one scope, where it was measured."""
    return next(
        (c for c in result.comparisons if (c.mode, c.over, c.scope) == (mode, over, scope)), None
    )


def level_words(result: Result) -> str:
    """The level of the run's intervals over blocks: above 95 % where several looks share it."""
    return f"{100 * (LEVEL if result.looks is None else result.looks.level):.6g} %"


def timed_adaptive(result: Result) -> list[str]:
    return [
        label
        for label, mode in result.modes.items()
        if mode.schedule in ("cdb", "lockstep") and mode.metrics
    ]


def _baselines(result: Result) -> list[str]:
    """The default table's baselines: static, static@auto and the dense rows that were timed."""
    timed = [label for label, mode in result.modes.items() if mode.metrics]
    dense = [label for label in timed if label.startswith("dense:")]
    return [label for label in ("static", "static@auto") if label in timed] + dense


def speedup_cell(result: Result, mode: str, over: str, scope: str) -> Cell:
    if mode == over:
        return text("1")
    found = comparison(result, mode, over, scope)
    if found is None:
        return text("-")
    return Cell(found.speedup.estimate, Kind.RATIO, found.speedup.low, found.speedup.high)


def _accuracy_cell(result: Result, label: str) -> Cell:
    found = result.accuracy.modes.get(label) if result.accuracy is not None else None
    if found is None:
        return text("-")
    return interval_cell(found.rate, Kind.PERCENT)


def _rate_cell(mode: ModeResult) -> Cell:
    over_blocks = mode.intervals.get("output_throughput")
    if over_blocks is None:
        return Cell(mode.metrics.get("output_throughput"))
    return interval_cell(over_blocks)


def _depth_cell(mode: ModeResult) -> Cell:
    depth = mode.answered_depth
    return Cell(mode.metrics.get("mean_depth") if depth is None else depth)


def _verdict(result: Result, label: str) -> str:
    if result.accuracy is None or label not in result.accuracy.modes or is_random(result):
        return "-"
    if label == result.accuracy.baseline:
        return "baseline"
    found = result.accuracy.modes[label]
    if found.paired is None:
        return "-"
    words = ACCURACY_WORDS[found.paired.verdict]
    if found.adaptive:
        return words
    return f"{words} ({'no loop saved' if found.early_first_tokens else 'not adaptive'})"


def _table_notes(result: Result) -> Iterator[str]:
    blocks = max((c.speedup.n for c in result.comparisons), default=0)
    if blocks:
        over = "1 interleaved block" if blocks == 1 else f"{blocks} interleaved blocks"
        interval = (
            f" with a {level_words(result)} interval: the machine's noise, not that of other "
            "requests"
            if blocks >= MIN_BLOCKS
            else ", too few for an interval"
        )
        yield (
            "'over' a mode: how many times as fast as that mode the same work was done, by wall "
            "time end to end (prompts and first tokens included), geometric mean over "
            f"{over}{interval}."
        )
        yield "tokens/s: output tokens of the same work / its whole wall, mean over the timed runs."
    if result.accuracy is not None:
        yield (
            "Accuracy and mean depth: the live pass, each mode's own text on "
            f"{_question_words(result.accuracy)}, {metric_words(result.accuracy)}; in brackets "
            "95 % intervals. Depths are of later tokens: a request's first token does not count."
        )
        timed = result.modes["cdb"].metrics.get("mean_depth") if "cdb" in result.modes else None
        if timed is not None:
            yield f"The requests that were timed have a mean depth of {timed:.3g} loops under cdb."


def _question_words(accuracy: Accuracy) -> str:
    """How many questions were answered, and by which modes fewer of them."""
    asked = {label: mode.rate.n if mode.rate else 0 for label, mode in accuracy.modes.items()}
    most = max(asked.values())
    fewer = ", ".join(f"{label} on {n:,} of them" for label, n in asked.items() if n < most)
    return f"{most:,} questions" + (f" ({fewer})" if fewer else "")
