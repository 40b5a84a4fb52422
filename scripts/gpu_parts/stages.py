"""Parts that measure stage curves and floors of a published shape, for themselves and the runs.

Curves are made once a shape, up to the widest run of it, and held to by all of its timed runs: a
pass after every block, as ``cdbench run`` makes them by default, would take more than the blocks.
They are measured at the least and the largest context, which lie close together here.
"""

from __future__ import annotations

import json
from typing import Any

from cdbench.schema import to_json
from cdbench.stages.measure import Asked, sound_ground
from cdbench.stages.meter import StageMeter
from scripts.gpu_parts.check import Check, TimeUp
from scripts.gpu_parts.shapes import HUGINN, OURO, Shape, Size, set_up

PASSES = 3
"""At most; the first comes after one that warms up."""


def ouro(check: Check, found: dict[str, Any]) -> None:
    """Curves of the Ouro-1.4B shape, up to width 256."""
    _measure(check, found, OURO)


def huginn(check: Check, found: dict[str, Any]) -> None:
    """Curves of the Huginn shape at R = 16, up to width 64."""
    _measure(check, found, HUGINN)


def curves_file(shape: Shape) -> str:
    """Where the curves of a shape lie in the folder of the check."""
    return f"{shape.name}-stages.json"


def _measure(check: Check, found: dict[str, Any], shape: Shape) -> None:
    config = check.config(set_up(check, shape, Size.of(check, shape.widest), 0))
    ground = sound_ground(config, Asked(), check.once)
    meter = StageMeter(
        ground.plan,
        sorted({ground.contexts[0], ground.contexts[-1]}),
        [request.prompt for request in ground.requests],
        later_contexts=ground.later,
        prompt_tokens=max(len(request.prompt) for request in ground.requests),
    )
    try:
        _passes(check, meter)
    except TimeUp:
        if not meter.passes:
            raise
    text = to_json(meter.curves())
    (check.folder / curves_file(shape)).write_text(text)
    found["curves"] = json.loads(text)


def _passes(check: Check, meter: StageMeter) -> None:
    """As many passes as there is time for, the floors still to be measured."""
    wanted = 1 if check.tiny else PASSES
    while meter.passes < wanted:
        began_s = check.left_s
        meter.one_pass()
        took_s = began_s - check.left_s
        if check.left_s < 1.5 * took_s:
            return
