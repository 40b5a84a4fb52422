"""What a table's caption says of its runs: model, hardware, exits, work, and what must be marked.

A fact that is the same in all points stands in the caption; one that varies is said to, and becomes
a column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cdbench.render.run_report import exit_words
from cdbench.render.styles.points import Point
from cdbench.schema import ExitSettings, ModeResult, Result, Workload

ADAPTIVE = ("cdb", "lockstep")
VARIES = "varies"
_UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Fact:
    """One thing to be said of a point. ``words`` answers None where it does not apply.

    ``keys`` are the configuration keys (or sections) it speaks of: they need no column of their
    own. ``whole``: it says all that these come to, so that they need none even where it is the same
    for other values. ``timed``: it belongs to timed work alone. ``priority`` is that of its column.
    """

    title: str
    words: Callable[[Point], str | None]
    keys: tuple[str, ...] = ()
    whole: bool = False
    timed: bool = False
    priority: int = 0


def subject(point: Point) -> str | None:
    """The adaptive mode that a point is about: ``cdb`` where it ran, else ``lockstep``."""
    return next((mode for mode in ADAPTIVE if mode in point.modes), None)


def _model(point: Point) -> str | None:
    found = point.first
    if found is None or found.model is None:
        return str(point.config.get("model") or _UNKNOWN)
    seed = found.model.random_weights_seed
    return found.model.name + ("" if seed is None else f" (random weights, seed {seed})")


def _loops(point: Point) -> str | None:
    found = point.first
    return None if found is None or found.model is None else str(found.model.max_loops)


def short_exit(settings: ExitSettings) -> str:
    """The rule and its threshold, floor and lag only where they are not the usual ones."""
    more = [f"min_loops {settings.min_loops}"] if settings.min_loops > 1 else []
    more += [f"lag {settings.lag}"] if settings.lag else []
    return ", ".join([exit_words(settings).partition(",")[0], *more])


def exit_of(point: Point) -> str | None:
    """The exits of its adaptive mode in words; None where it has none."""
    label = subject(point)
    if label is None:
        return None
    if point.first is not None:
        return short_exit(point.first.modes[label].exit)
    asked = point.config.get("exit")
    if isinstance(asked, dict):
        at = asked.get("threshold")
        return f"{asked.get('rule', _UNKNOWN)}" + ("" if at is None else f"@{at:g}")
    return str(asked or _UNKNOWN)


def _hardware(point: Point) -> str | None:
    if point.first is None:
        return _UNKNOWN
    where = point.first.manifest
    name = where.device.name or where.cpu.model or "CPU"
    threads = where.torch_threads
    count = "" if threads is None else f", {threads} thread{'' if threads == 1 else 's'}"
    return f"{where.device.kind}, {name}{count}"


def _dtype(point: Point) -> str | None:
    found = point.first
    if found is not None and found.model is not None:
        return found.model.dtype
    return str(point.config.get("dtype") or _UNKNOWN)


def _layout(point: Point) -> str | None:
    found = point.first
    if found is not None and found.model is not None:
        return found.model.kv_layout
    asked = point.config.get("kv")
    return str(asked.get("layout") or _UNKNOWN) if isinstance(asked, dict) else _UNKNOWN


def _width(point: Point) -> str | None:
    modes = _timed_modes(point.first)
    if not modes:
        return None
    pairs = {(mode.width, mode.max_residents) for mode in modes}
    if len(pairs) > 1:
        return "by mode (equal memory)"
    ((width, residents),) = pairs
    return f"{width}" if width == residents else f"{width} ({residents} residents)"


def _requests(point: Point) -> str | None:
    work = _work(point)
    return None if work is None else f"{work.requests:,}"


def _prompts(point: Point) -> str | None:
    work = _work(point)
    return None if work is None else f"{work.prompt_tokens / work.requests:.3g}"


def _outputs(point: Point) -> str | None:
    work = _work(point)
    if work is None or work.output_tokens is None:
        return None
    return f"{work.output_tokens / work.requests:.3g}"


def _arrivals(point: Point) -> str | None:
    work = _work(point)
    return None if work is None else work.arrivals


def _source(point: Point) -> str | None:
    work = _work(point)
    return None if work is None else work.source


def _blocks(point: Point) -> str | None:
    count = sum(len({block.index for block in result.blocks}) for result in point.results)
    return f"{count:,}" if count else None


def _questions(point: Point) -> str | None:
    found = point.first.accuracy if point.first is not None else None
    asked = [mode.rate.n for mode in found.modes.values() if mode.rate] if found else []
    return f"{max(asked):,}" if asked else None


def _work(point: Point) -> Workload | None:
    """What was timed; None where nothing was."""
    found = point.first
    return found.workload if found is not None and found.workload.requests else None


def _timed_modes(result: Result | None) -> list[ModeResult]:
    return [] if result is None else [m for m in result.modes.values() if m.width is not None]


EXIT, WIDTH, ARRIVALS, LAYOUT = "exit rule", "width", "arrivals", "KV layout"
QUESTIONS, BLOCKS = "questions", "blocks"

FACTS = (
    Fact("model", _model, ("model", "weights", "layers")),
    Fact("loops R", _loops, ("exit.max_loops",), whole=True, priority=1),
    Fact(
        EXIT,
        exit_of,
        ("exit.rule", "exit.threshold", "exit.depth", "exit.lag", "exit.min_loops"),
        whole=True,
    ),
    Fact("hardware", _hardware, ("device",), whole=True, priority=1),
    Fact("dtype", _dtype, ("dtype",), whole=True, priority=1),
    Fact(LAYOUT, _layout, ("kv.layout",), whole=True),
    Fact(WIDTH, _width, ("engine.width", "engine.max_residents"), whole=True, timed=True),
    Fact("requests", _requests, ("workload.requests",), whole=True, timed=True, priority=5),
    Fact("mean prompt tokens", _prompts, ("workload.prompt_tokens",), timed=True, priority=5),
    Fact("mean output tokens", _outputs, ("workload.output",), timed=True, priority=5),
    Fact("workload", _source, ("workload.source",), timed=True, priority=1),
    Fact(ARRIVALS, _arrivals, ("workload.arrivals",), whole=True, timed=True),
    Fact(BLOCKS, _blocks, ("repeats.blocks", "repeats.max_seconds"), timed=True, priority=5),
    Fact(QUESTIONS, _questions, ("limit", "tasks", "evaluation.samples"), priority=5),
)


def values_of(fact: Fact, points: Sequence[Point]) -> list[str | None]:
    """What the fact is in each point."""
    return [fact.words(point) for point in points]


def varies(fact: Fact, points: Sequence[Point]) -> bool:
    """Whether the points differ in it; one that does not apply is like every other."""
    return len({words for words in values_of(fact, points) if words is not None}) > 1


def caption(points: Sequence[Point], facts: Sequence[Fact], scope: str) -> tuple[str, ...]:
    """The facts, what the scope of the numbers is, and every mark, a line each."""
    said = [words for fact in facts if (words := _said(fact, points))]
    facts_line = f"{'; '.join(said)}."
    lines = [facts_line[:1].upper() + facts_line[1:]] if said else []
    return (*lines, scope, *marks(points)) if scope else (*lines, *marks(points))


def _said(fact: Fact, points: Sequence[Point]) -> str:
    known = {words: None for words in values_of(fact, points) if words is not None}
    if not known:
        return ""
    return f"{fact.title}: {VARIES if len(known) > 1 else next(iter(known))}"


def marks(points: Sequence[Point]) -> Iterator[str]:
    """What may not be left unsaid: random weights, synthetic or replayed work, INVALID runs."""
    found = [(point, result) for point in points for result in point.results]
    of_all = len(points)
    random = [p for p, r in found if r.model and r.model.random_weights_seed is not None]
    if random:
        share = _share(random, of_all)
        yield f"RANDOM WEIGHTS{share}: timings only; texts and accuracy mean nothing."
    for words in dict.fromkeys(r.workload.synthetic for _, r in found if r.workload.synthetic):
        some = [p for p, r in found if r.workload.synthetic == words]
        what = words.removeprefix("synthetic depths: ").removesuffix(".")
        yield f"SYNTHETIC depths{_share(some, of_all)}: {what}."
    replayed = dict.fromkeys(
        ", ".join(r.workload.replayed) for _, r in found if r.workload.replayed
    )
    for words in replayed:
        yield f"Replayed in every timed mode: {words} of one recorded run."
    interrupted = [point for point in points if point.interrupted]
    if interrupted:
        yield f"INTERRUPTED{_share(interrupted, of_all)}: not all of it was measured."
    invalid = [point for point in points if point.invalid]
    if invalid:
        yield f"INVALID{_share(invalid, of_all)}: quote no number with a dagger (†)."


def _share(some: Sequence[Point], of_all: int) -> str:
    """`` (2 of 5 runs)``, and nothing where it is all of them or the only one."""
    count = len({id(point) for point in some})
    return "" if count == of_all else f" ({count} of {of_all} runs)"


def reasons(points: Sequence[Point]) -> Iterator[str]:
    """Why each INVALID point is: its first reason, and how many more there are."""
    for point in points:
        if point.invalid:
            first, *more = point.reasons or ("no reason recorded",)
            others = f" (and {len(more)} more)" if more else ""
            yield f"† {point.name} is INVALID: {first}{others}."
