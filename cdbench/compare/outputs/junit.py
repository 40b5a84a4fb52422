"""A gate's receipt as JUnit XML, which CI systems show as tests.

There is no standard: what is written here is what Jenkins, GitLab and GitHub's actions for test
reports all read, one suite with a case a check. A FAIL is a failure. An INVALID check is an error,
since it says nothing of the code. One that is INCONCLUSIVE is skipped, unless it is what stops the
gate: then it is a failure too, of its own type. No case has a duration: nothing ran but
comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from cdbench.schema.gating import GateCheck, GateReceipt

NO_DURATION = "0"
ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 (production 2, Char) can hold in no way, not even escaped."""


def to_junit(receipt: GateReceipt) -> str:
    """The whole file. Every text of the receipt is in it but for characters that XML forbids."""
    outcomes = [_outcome(receipt, check) for check in receipt.checks]
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "time": NO_DURATION,
    }
    name = _legal(f"cdbench gate {receipt.gate}")
    suites = ET.Element("testsuites", {"name": name, **counts})
    skipped = {"skipped": str(outcomes.count("skipped"))}
    suite = ET.SubElement(suites, "testsuite", {"name": name, **counts, **skipped})
    properties = ET.SubElement(suite, "properties")
    for key, value in _properties(receipt):
        ET.SubElement(properties, "property", {"name": key, "value": _legal(value)})
    for check, outcome in zip(receipt.checks, outcomes, strict=True):
        _case(suite, check, outcome)
    ET.SubElement(suite, "system-out").text = _legal(
        "\n".join([*_marks(receipt), *receipt.notes, *receipt.sentences])
    )
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _outcome(receipt: GateReceipt, check: GateCheck) -> str | None:
    """The element that says how a check ended; None for one that holds."""
    if check.verdict == "INCONCLUSIVE":
        stops = receipt.verdict == "INCONCLUSIVE" and receipt.exit_code != 0
        return "failure" if stops else "skipped"
    return {"FAIL": "failure", "INVALID": "error"}.get(check.verdict)


def _case(suite: ET.Element, check: GateCheck, outcome: str | None) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {"classname": f"cdbench.{check.kind}", "name": _legal(check.name), "time": NO_DURATION},
    )
    why = _legal(check.why)
    if outcome is None:
        ET.SubElement(case, "system-out").text = why
        return
    kind = {} if outcome == "skipped" else {"type": check.verdict.lower()}
    ET.SubElement(case, outcome, {"message": why, **kind}).text = _legal("\n".join(_facts(check)))


def _facts(check: GateCheck) -> Iterator[str]:
    """Everything that the check knows, a line each, at full precision."""
    known = check.model_dump(mode="json", exclude={"name", "kind", "why"}, exclude_none=True)
    for name, value in known.items():
        if value not in ("", {}):
            yield f"{name}: {value}"


def _properties(receipt: GateReceipt) -> Iterator[tuple[str, str]]:
    yield "gate", receipt.gate
    yield "gate_sha256", receipt.gate_sha256
    yield "verdict", receipt.verdict
    yield "exit_code", str(receipt.exit_code)
    yield "run", receipt.run.name
    yield "run_started_utc", receipt.run.started_utc
    yield "workload", receipt.run.workload
    if receipt.base is not None:
        yield "base", receipt.base.name
        yield "base_workload", receipt.base.workload
    for kind, file in receipt.baselines.items():
        yield f"baseline_{kind}", file
    for mark in _marks(receipt):
        yield "mark", mark


def _marks(receipt: GateReceipt) -> list[str]:
    """What must be known of either side before its numbers are read."""
    sides = [("run", receipt.run), *([("base", receipt.base)] if receipt.base is not None else [])]
    return [
        f"{role}: {mark}"
        for role, side in sides
        for mark in (*side.marks, *(f"INVALID: {reason}" for reason in side.reasons))
    ]


def _legal(text: str) -> str:
    return ILLEGAL.sub("", text)
