"""An examination in a terminal: the verdict of every check, the rules, the depths, the rounding."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from pydantic import JsonValue
from rich.console import Console

from cdbench.doctor.document import (
    Check,
    DoctorDocument,
    DtypeLine,
    Facts,
    Measuring,
    RuleLine,
)
from cdbench.render.bars import depth_bars
from cdbench.render.formats import Kind, seconds, si_bytes
from cdbench.render.table import Cell, Column, Row, Table, text
from cdbench.render.terminal import print_lines, print_table
from cdbench.schema import Manifest

MOST_BAR_LINES = 12
BAR_WIDTH = 60
LEAST_DETAIL = 16


def print_report(document: DoctorDocument, console: Console) -> None:
    """Print it; on a narrow terminal columns go and lines wrap, but no verdict is lost."""
    if document.facts is None:
        print_table(machine_table(document.machine), console)
    if document.measuring is not None:
        print_lines(console, "", *measuring_lines(document.measuring, console.width))
    if document.facts is None:
        return
    if document.measuring is not None:
        print_lines(console, "")
    print_lines(console, *heading(document))
    print_table(check_table(document.checks), console)
    for check in document.checks:
        if check.detail is not None:
            print_lines(console, f"{check.name}: {check.detail}")
    if document.rules:
        print_lines(console, "")
        print_table(rule_table(document.rules), console)
    if document.depths is not None and document.config["exit"] != "none":
        print_lines(console, f"loops per later token, {document.config['exit']}")
        print_lines(console, *_bars(document.depths, console))
    if document.dtypes:
        print_lines(console, "")
        print_table(dtype_table(document.dtypes), console)
    print_lines(console, "", closing(document))


def heading(document: DoctorDocument) -> Iterator[str]:
    """What was examined, on what, with which requests."""
    facts, setup = document.facts, document.config
    assert facts is not None
    yield f"model     {document.model} ({facts.model_type}), {_facts_line(facts)}"
    tied, unread = len(facts.tied_parameters), facts.unread_parameters
    yield (
        f"weights   {si_bytes(facts.weight_bytes)} in {setup['dtype']}, {tied} tied, "
        f"{_unread(unread)}"
    )
    cpu = document.machine.cpu.model or "unknown processor"
    torch = document.machine.packages.get("torch")
    yield (
        f"machine   {cpu}, {setup['device']}, {document.machine.torch_threads} threads, "
        f"torch {torch}"
    )
    yield (
        f"checked   in {setup['dtype']}, exit {setup['exit']}, kv {setup['kv']}, "
        f"{setup['requests']} requests and {setup['probes']} forced ones of up to "
        f"{setup['max_new_tokens']} tokens, prompts: {setup['prompts']}"
    )
    for note in document.notes:
        yield f"note      {note}"


def _facts_line(facts: Facts) -> str:
    ratio = "n/a" if facts.cost_ratio is None else f"{facts.cost_ratio:.3g}"
    return (
        f"{facts.parameters:,} parameters, layers {facts.layers} (prelude-core-coda), "
        f"{facts.loops} loops, cost ratio {ratio}, KV {si_bytes(facts.kv_bytes_per_token)} "
        "per token"
    )


def _unread(names: list[str] | None) -> str:
    if names is None:
        return "not looked at"
    return f"read by no stage: {', '.join(names)}" if names else "all read"


def check_table(checks: list[Check]) -> Table:
    """One line per check."""
    columns = (
        Column("check", align="left"),
        Column("verdict", align="left"),
        Column("tokens", priority=3),
        Column("within", priority=1, note="largest gap of logprobs; under `whole`, of logits"),
        Column("also", align="left", priority=2),
        Column("compares", align="left", priority=4),
    )
    return Table(columns, tuple(_check_row(check) for check in checks))


def _check_row(check: Check) -> Row:
    figures = check.figures
    tokens = figures.get("tokens")
    gap = figures.get("largest_logit_gap", figures.get("largest_logprob_gap"))
    cells = (
        text(check.name),
        text(check.verdict),
        Cell(tokens, Kind.COUNT) if isinstance(tokens, int) else text("-"),
        text(f"{gap:.1e}") if isinstance(gap, float) else text("-"),
        text(_also(figures)),
        text(check.compares),
    )
    return Row(cells, emphasis=check.verdict == "fail")


def _also(figures: dict[str, JsonValue]) -> str:
    """The other figures worth a glance; --json has them all."""
    shown = []
    if figures.get("changed"):
        shown.append(f"{figures['changed']} of {figures['requests']} changed")
    for key in ("preemptions", "mid_token", "rules", "parameters"):
        if isinstance(count := figures.get(key), int):
            shown.append(f"{key.replace('_', '-')} {count:,}")
    if figures.get("unread_parameters"):
        shown.append(f"unread parameters {figures['unread_parameters']}")
    if isinstance(share := figures.get("hit_rate"), float):
        shown.append(f"hit rate {share:.0%}")
    return ", ".join(shown)


def rule_table(lines: list[RuleLine]) -> Table:
    """What each rule did at its default threshold."""
    columns = (
        Column("exit rule", align="left"),
        Column("threshold"),
        Column("mean depth", unit="loops"),
        Column("exits early"),
        Column("tokens", priority=1),
        Column("NaN or infinite", note="of the signals over whole sequences at full depth"),
    )
    rows = [
        Row(
            (
                text(line.rule),
                text("-" if line.threshold is None else f"{line.threshold:g}"),
                Cell(line.mean_depth),
                Cell(_early(line), Kind.PERCENT),
                Cell(line.tokens, Kind.COUNT),
                text("-") if not line.signals else Cell(line.not_finite, Kind.COUNT),
            )
        )
        for line in lines
    ]
    note = "Rules at their default thresholds; later tokens of a few requests: no measurement."
    return Table(columns, tuple(rows), notes=(note,))


def _early(line: RuleLine) -> float | None:
    return 1 - line.depths[-1] / line.tokens if line.tokens else None


def dtype_table(lines: list[DtypeLine]) -> Table:
    """What rounding changes."""
    columns = (
        Column("greedy requests", align="left"),
        Column("n", priority=3),
        Column("same tokens"),
        Column("depths too"),
        Column("other depth", priority=1, note="share of tokens, before any of a request differs"),
        Column("earliest change", priority=1, note="token index, the first token being 0"),
        Column("median change", priority=2),
        Column(
            "median margin",
            priority=1,
            note="top-2 logit margin there, in what it is compared with",
        ),
        Column("largest margin", priority=2),
        Column("logprob gap", note="largest before a request's tokens or depths differ"),
        Column("NaN or infinite", priority=4),
    )
    rows = [
        Row(
            (
                text(_compared(line)),
                Cell(line.requests, Kind.COUNT),
                Cell(line.same_tokens, Kind.PERCENT),
                Cell(line.same_tokens_and_depths, Kind.PERCENT),
                Cell(line.other_depth, Kind.PERCENT),
                _or_dash(line.earliest_divergence, Kind.COUNT),
                _or_dash(line.median_divergence, Kind.NUMBER),
                _margin(line.median_margin),
                _margin(line.largest_margin),
                _margin(line.largest_logprob_gap),
                Cell(line.not_finite, Kind.COUNT),
            )
        )
        for line in lines
    ]
    return Table(columns, tuple(rows))


def _compared(line: DtypeLine) -> str:
    if line.compared == "dtypes":
        return f"{line.dtype} vs {line.against}"
    return f"{line.dtype}, batched vs alone"


def _or_dash(value: float | None, kind: Kind) -> Cell:
    return text("-") if value is None else Cell(value, kind)


def _margin(value: float | None) -> Cell:
    return text("-") if value is None else text(f"{value:.2g}")


def machine_table(machine: Manifest) -> Table:
    """What is known of this machine."""
    columns = (Column("this machine", align="left"), Column("", align="left"))
    rows = tuple(Row((text(name), text(value))) for name, value in _machine_rows(machine))
    note = "`cdbench doctor --model M` checks a model on it."
    return Table(columns, rows, notes=(note,))


def _machine_rows(machine: Manifest) -> Iterator[tuple[str, str]]:
    cpu, device = machine.cpu, machine.device
    yield "processor", cpu.model or "unknown"
    cores = f"{cpu.physical_cores or '?'} physical, {cpu.logical_cores or '?'} logical"
    if cpu.affinity is not None:
        cores += f", {len(cpu.affinity)} usable by this process"
    if cpu.quota_cores is not None:
        cores += f", quota {cpu.quota_cores:g}"
    yield "cores", cores
    if cpu.governor is not None:
        yield "governor", cpu.governor
    if machine.load_average is not None:
        yield "load average", " ".join(f"{load:g}" for load in machine.load_average)
    yield "memory", si_bytes(machine.ram_bytes)
    memory = "" if device.memory_bytes is None else f", {si_bytes(device.memory_bytes)}"
    yield "device", (device.name or device.kind) + memory
    yield "system", machine.platform
    yield "python, torch", f"{machine.python}, {machine.packages.get('torch') or 'no torch'}"
    yield "torch threads", str(machine.torch_threads or "unknown")
    yield "cdbench", machine.cdbench_version or "unknown"
    yield from machine.env.items()


def measuring_lines(found: Measuring, width: int) -> Iterator[str]:
    """A line a finding, its detail wrapped; then how many warnings there are."""
    names = max(len(finding.name) for finding in found.findings)
    for finding in found.findings:
        start = f"{finding.verdict:<7}  {finding.name:<{names}}  "
        yield from wrap(
            start + finding.detail,
            width=max(width, len(start) + LEAST_DETAIL),
            subsequent_indent=" " * len(start),
            break_on_hyphens=False,
        )
    count = len(found.warnings)
    if count:
        yield f"{count} warning{'s' if count > 1 else ''}: put right what you can before a run."
    else:
        yield "Nothing found that would spoil a run."


def closing(document: DoctorDocument) -> str:
    """The verdict in one line."""
    ran = [c for c in document.checks if c.verdict != "not applicable"]
    took = f"{seconds(document.wall_s)}" if document.wall_s is not None else ""
    failed = ", ".join(check.name for check in document.failed)
    if failed:
        return f"FAIL: {failed}. {len(ran)} checks in {took}."
    rounding = sum(check.verdict == "rounding" for check in ran)
    changed = f", {rounding} of them but for rounding" if rounding else ""
    return f"PASS: {len(ran)} checks{changed}, in {took}."


def _bars(counts: list[int], console: Console) -> list[str]:
    """The histogram; of many loops only the span that was used."""
    shown = counts
    if len(counts) > MOST_BAR_LINES:
        last = max((depth for depth, count in enumerate(counts, start=1) if count), default=1)
        shown = counts[:last]
    return depth_bars(shown, width=min(BAR_WIDTH, console.width), encoding=console.encoding)
