"""The document on one screen: how parts ended, and the figures of the timed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cdbench.render.formats import Kind
from cdbench.render.table import DAGGER, Cell, Column, Row, Table
from cdbench.render.terminal import make_console, print_lines, print_table

WIDTH = 120
SHARES = ("time_bound_steady", "time_bound", "flop_bound")
"""Bounds whose share is shown, the first that there is."""
STAGES = ("prelude", "core", "coda")
STAGE_ROWS = (1, 8, 64, 256)
Json = Mapping[str, Any]


def print_summary(document: Json) -> None:
    """Print it to standard output."""
    console = make_console(width=WIDTH)
    print_lines(console, *part_lines(document), *changed_lines(document), "")
    for table in (timed_table(document), waterfall_table(document), stage_table(document)):
        if table.rows:
            print_table(table, console)
            print_lines(console, "")


def part_lines(document: Json) -> list[str]:
    """Where it ran, and every part with how it ended; what is wrong comes with its reason."""
    device = document["manifest"].get("device") or {}
    tiny = ", tiny sizes: no figure means anything" if document["tiny"] else ""
    lines = [f"{device.get('name') or document['device']}, {document['seconds']:.0f} s{tiny}"]
    lines += document["marks"]
    done = [
        f"{name} ({entry['seconds']:.0f} s{_faults_words(entry)})"
        for name, entry in document["parts"].items()
        if entry["status"] == "done"
    ]
    if done:
        lines.append(f"done: {', '.join(done)}")
    lines += [
        f"{entry['status']}: {name}{_faults_words(entry)}: {entry['why']}"
        for name, entry in document["parts"].items()
        if entry["status"] != "done"
    ]
    return lines


def _faults_words(entry: Json) -> str:
    faults = entry["found"].get("faults")
    silent = faults is None or (faults == 0 and entry["status"] != "done")
    return "" if silent else f", {faults} fault{'' if faults == 1 else 's'}"


def changed_lines(document: Json) -> Iterator[str]:
    """Requests whose tokens differ between two engines, a line for each part that compares."""
    for name, entry in document["parts"].items():
        cases = {
            case: told
            for case, told in entry["found"].items()
            if isinstance(told, dict) and "changed" in told
        }
        if cases:
            words = [f"{case}: {t['changed']} of {t['requests']}" for case, t in cases.items()]
            yield f"changed requests, {name}: {'; '.join(words)}"


def timed_table(document: Json) -> Table:
    """A row for every mode of every timed part."""
    columns = (
        Column("part", align="left"),
        Column("mode", align="left"),
        Column("later tokens/s"),
        Column("over static", note="decode scope; interval over blocks where there are six"),
        Column(
            "of bound",
            note="share realised of the steady window's time bound; where there is none, of the "
            "decode time bound, else of the FLOP bound",
        ),
        Column("ms/loop"),
        Column("floor"),
        Column("idle", note="wall in which no launch ran on the device"),
        Column("blocks"),
    )
    rows = [row for name, result in _results(document) for row in _mode_rows(name, result)]
    return Table(columns, tuple(rows), "Timed parts", notes=_notes(document))


def _mode_rows(part: str, result: Json) -> Iterator[Row]:
    spoiled = _spoiled(result)
    blocks = len({block["index"] for block in result["blocks"]})
    for mode, row in result["modes"].items():
        measured = row["metrics"]
        yield Row(
            (
                Cell(part, Kind.TEXT),
                Cell(mode if mode == "static" else f"{mode}, lag {row['exit']['lag']}", Kind.TEXT),
                Cell(measured.get("decode_throughput"), invalid=spoiled),
                _interval(_speedup(result, mode), Kind.RATIO, spoiled),
                _share(result, mode, spoiled),
                Cell(measured.get("ms_per_loop"), invalid=spoiled),
                Cell(measured.get("floor_ms_per_loop")),
                Cell(measured.get("host_share"), Kind.PERCENT, invalid=spoiled),
                Cell(blocks, Kind.COUNT),
            )
        )


def _speedup(result: Json, mode: str) -> Json | None:
    return next(
        (
            c["speedup"]
            for c in result["comparisons"]
            if (c["mode"], c["over"], c["scope"]) == (mode, "static", "decode")
        ),
        None,
    )


def _share(result: Json, mode: str, spoiled: bool) -> Cell:
    bounds = result["bounds"].get(mode, {})
    name = next((n for n in SHARES if (bounds.get(n) or {}).get("realised")), None)
    return _interval(bounds[name]["realised"] if name else None, Kind.PERCENT, spoiled)


def _interval(found: Json | None, kind: Kind, spoiled: bool) -> Cell:
    if found is None:
        return Cell("–", Kind.TEXT)
    return Cell(found["estimate"], kind, found["low"], found["high"], invalid=spoiled)


def _notes(document: Json) -> tuple[str, ...]:
    """The first reason of runs that are INVALID, those of one together; the document has all."""
    parts: dict[str, list[str]] = {}
    for name, result in _results(document):
        if _spoiled(result):
            parts.setdefault(result["validity"]["reasons"][0], []).append(name)
    return tuple(f"{DAGGER} {', '.join(of)}: INVALID: {why}" for why, of in parts.items())


def _spoiled(result: Json) -> bool:
    return bool(result["validity"]["verdict"] == "INVALID")


def waterfall_table(document: Json) -> Table:
    """Factors from the loops saved to the measured speed-up of ``cdb``, a column for each part."""
    falls = {
        name: (fall["rows"], _spoiled(result))
        for name, result in _results(document)
        if (fall := (result.get("waterfall") or {}).get("cdb")) and fall["rows"]
    }
    effects = list(dict.fromkeys(row["effect"] for fall, _ in falls.values() for row in fall))
    rows = [
        Row(
            (
                Cell(effect.replace("_", " "), Kind.TEXT),
                *(_factor(*fall, effect) for fall in falls.values()),
            )
        )
        for effect in effects
    ]
    columns = (Column("cdb over static", align="left"), *(Column(name) for name in falls))
    return Table(columns, tuple(rows), "Where the gain went: factors, times one another")


def _factor(rows: Sequence[Json], spoiled: bool, effect: str) -> Cell:
    row = next((row for row in rows if row["effect"] == effect), None)
    return Cell(None if row is None else row["factor"]["estimate"], invalid=spoiled)


def stage_table(document: Json) -> Table:
    """Launch times and floors of some widths, at the largest context."""
    rows = []
    for name, entry in document["parts"].items():
        curves = entry["found"].get("curves")
        if curves is not None:
            rows += [_stage_row(name, curves, stage) for stage in STAGES]
    columns = (
        Column("part", align="left"),
        Column("stage", align="left"),
        *(Column(f"{n} row{'' if n == 1 else 's'}") for n in STAGE_ROWS),
        Column("bytes/s", note="measured memory bandwidth, which floors are made from"),
        Column("FLOP/s", note="measured rate of a large matrix product, likewise"),
    )
    return Table(columns, tuple(rows), "Stage curves: ms a launch, with the exit rule (floor)")


def _stage_row(part: str, curves: Json, stage: str) -> Row:
    context = max(curves["contexts"])
    points = {
        p["rows"]: f"{p['time_s'] * 1e3:.3g} ({p['floor_s'] * 1e3:.3g})"
        for p in curves["points"]
        if (p["stage"], p["context"]) == (f"{stage}_with_exit", context)
    }
    floors = curves["floors"]
    return Row(
        (
            Cell(part, Kind.TEXT),
            Cell(stage, Kind.TEXT),
            *(Cell(points.get(n, "–"), Kind.TEXT) for n in STAGE_ROWS),
            Cell(f"{floors['bandwidth_bytes_per_s']:.3g}", Kind.TEXT),
            Cell(f"{floors['matmul_flops_per_s']:.3g}", Kind.TEXT),
        )
    )


def _results(document: Json) -> Iterator[tuple[str, Json]]:
    """Timed parts by name with what they measured, those that were cut as well."""
    for name, entry in document["parts"].items():
        if "idle_share" in entry["found"] and entry["found"]["result"]["modes"]:
            yield name, entry["found"]["result"]
