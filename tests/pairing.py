"""Fake sides of a paired gate: programs that speak the protocol with scripted walls.

A fake answers the interpreter's probe and the worker's commands as its ``script.json`` says, with
the standard library alone, and notes every command in one log that both sides share.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdbench.compare.gate_file import GateFile, parse_gate
from cdbench.compare.pair.asked import Asked, ask
from cdbench.compare.pair.run import Conduct, paired_gate
from cdbench.compare.pair.turns import turns
from cdbench.schema import ModelIdentity, RepeatEnvironment, Workload
from cdbench.schema.pairing import (
    PROTOCOL,
    Hello,
    PairOutcome,
    PairRun,
    Prepared,
    SideName,
    Timed,
)
from tests.comparing import FACTS, MANIFEST

TOKENS = 1000
MODES = ("static", "cdb")
GATE = {"name": "pair", "modes": ["cdb"], "timed": {"metrics": ["output_throughput"]}}
WORK = Workload(
    hash="ab" * 32,
    source="hand-made",
    requests=20,
    prompt_tokens=100,
    output_tokens=TOKENS,
    arrivals="all-at-once",
    replayed=["tokens", "lengths", "depths"],
)

PROGRAM = """
import json, os, random, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = json.load(open(os.path.join(HERE, "script.json")))

if "-c" in sys.argv:
    print(json.dumps(SCRIPT["probe"]))
    sys.exit()

def note(*words):
    with open(SCRIPT["log"], "a") as log:
        print(SCRIPT["side"], *words, file=log)

note("pid", os.getpid())
if SCRIPT["child"]:
    note("pid", subprocess.Popen(["sleep", "600"]).pid)
draw = random.Random(SCRIPT["seed"])
regions = 0

def timed(mode):
    wall = SCRIPT["walls"][mode] * (1 + SCRIPT["noise"] * draw.uniform(-1, 1))
    answer = {**SCRIPT["timed"], "mode": mode, "wall_s": wall, "decode_wall_s": wall / 2}
    answer["metrics"] = {**answer["metrics"], "output_throughput": SCRIPT["tokens"] / wall}
    return answer

for line in sys.stdin:
    command = json.loads(line)
    what, number = command["command"], command["id"]
    note(what, *([command["mode"]] if "mode" in command else []))
    regions += what == "time"
    fate = SCRIPT["fate"].get(what) if regions > SCRIPT["after"] or what != "time" else None
    if fate == "die":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(9)
    if fate == "hang":
        time.sleep(600)
    if fate == "garbage":
        print("Loading weights: 100%", flush=True)
        continue
    if fate == "refuse":
        answer = {"error": {"exit_code": 2, "message": "engine.width: too wide; lower it"}}
    elif fate == "fail":
        answer = {"error": {"exit_code": 4, "message": "ZeroDivisionError: division by zero"}}
    elif what == "time":
        answer = {"ok": timed(command["mode"])}
    elif what == "prepare":
        warm = {mode: timed(mode) for mode in command["config"]["modes"]}
        answer = {"ok": {**SCRIPT["prepare"], "warm": warm, "config": command["config"]}}
    else:
        answer = {"ok": SCRIPT[what]}
    if fate == "wrong-id":
        number += 1
    if fate == "missing":
        answer["ok"].pop("wall_s")
    print(json.dumps({"id": number, **answer}), flush=True)
    if what == "quit":
        break
"""


@dataclass(frozen=True)
class Fake:
    """What one side does. ``fate``: command → how it goes wrong, of regions ``after`` so many."""

    walls: Mapping[str, float] = field(default_factory=lambda: {"static": 2.0, "cdb": 1.0})
    noise: float = 0.0
    seed: int = 0
    counts: Mapping[str, float] = field(default_factory=lambda: {"token_loops": 2500.0})
    fate: Mapping[str, str] = field(default_factory=dict)
    after: int = 0
    protocol: int = PROTOCOL
    source: str = "a"
    work: Workload = WORK
    threads: int = 2
    weights: str = "c"
    environment: RepeatEnvironment | None = None
    record: Mapping[str, Any] = field(default_factory=lambda: {"requests": 20})
    leave: Mapping[str, Any] = field(
        default_factory=lambda: {"changed_sources": [], "changed_models": []}
    )
    unequal: Sequence[str] = ()
    child: bool = False
    probe: Sequence[Any] = ("cdbench-paired-gate", True, True)

    def written(self, directory: Path, side: str, log: Path) -> str:
        """The program of this side, ready to be named as an interpreter."""
        directory.mkdir()
        timed = Timed(
            mode="",
            wall_s=1,
            decode_wall_s=None,
            metrics=dict(self.counts),
            unequal=[*self.unequal],
            environment=self.environment,
        )
        hello = Hello(
            protocol=self.protocol,
            cdbench_version="0.1.0",
            source_sha256=self.source * 64,
            git=None,
            python="3.11.7",
            torch=None,
        )
        prepared = Prepared(
            manifest=MANIFEST.model_copy(
                update={"torch_threads": self.threads, "models": [self._model()]}
            ),
            config={},
            model=FACTS,
            workload=self.work,
            wall_ratios=True,
            compute_threads=1,
            warm={},
        )
        script = {
            "side": side,
            "log": str(log),
            "probe": list(self.probe),
            "walls": dict(self.walls),
            "noise": self.noise,
            "seed": self.seed,
            "tokens": TOKENS,
            "fate": dict(self.fate),
            "after": self.after,
            "child": self.child,
            "hello": hello.model_dump(mode="json"),
            "record": dict(self.record),
            "prepare": prepared.model_dump(mode="json"),
            "timed": timed.model_dump(mode="json"),
            "quit": dict(self.leave),
        }
        (directory / "script.json").write_text(json.dumps(script))
        program = directory / "python"
        # -S -E: a fake needs no packages, and starts in a few hundredths of a second.
        program.write_text(f"#!{sys.executable} -SE\n{PROGRAM}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return str(program)

    def _model(self) -> ModelIdentity:
        return ModelIdentity(name="hand-made", files={"model.safetensors": self.weights * 64})


@dataclass
class Sides:
    """Two fakes on disk, and what they were asked."""

    old: str
    new: str
    log: Path

    @classmethod
    def of(cls, folder: Path, old: Fake, new: Fake) -> Sides:
        log = folder / "commands.log"
        log.touch()
        return cls(
            old.written(folder / "o", "old", log), new.written(folder / "n", "new", log), log
        )

    @property
    def commands(self) -> list[list[str]]:
        """(side, command, mode) in the order in which they came."""
        return [line.split() for line in self.log.read_text().splitlines()]

    @property
    def turns(self) -> list[tuple[str, str]]:
        """(side, mode) of every timed region."""
        return [(words[0], words[2]) for words in self.commands if words[1] == "time"]

    @property
    def pids(self) -> list[int]:
        """Every process that a fake has been or started."""
        return [int(words[2]) for words in self.commands if words[1] == "pid"]


def asked(gate: Mapping[str, Any] | None = GATE, **changes: Any) -> Asked:
    """A gate on the shipped small configuration."""
    found: GateFile | None = None
    if gate is not None:
        found = parse_gate({**gate, **changes}, "gate")
    return ask("ci", found, "0" * 64)


def judged(
    sides: Sides,
    what: Asked | None = None,
    conduct: Conduct | None = None,
    out: Path | None = None,
    told: list[str] | None = None,
) -> PairOutcome:
    """A gate on two fakes."""
    lines = [] if told is None else told
    return paired_gate(
        {"old": sides.old, "new": sides.new},
        asked() if what is None else what,
        conduct or Conduct(),
        lines.append,
        out,
    )


def pair_run(pair: int, order: int, side: SideName, mode: str, wall_s: float) -> PairRun:
    """A timed region whose other metrics follow from its wall."""
    metrics = {"output_throughput": 1 / wall_s, "tpot": wall_s / 7, "core_occupancy": wall_s / 200}
    return PairRun(
        pair=pair,
        order=order,
        side=side,
        mode=mode,
        wall_s=wall_s,
        decode_wall_s=wall_s / 3,
        metrics=metrics,
    )


def runs_of(walls: Sequence[float], modes: Sequence[str] = MODES) -> list[PairRun]:
    """Whole pairs with these walls, in the order of the turns."""
    made: list[PairRun] = []
    for pair in range(len(walls) // (4 * len(modes))):
        for order, (side, mode) in enumerate(turns(pair, modes)):
            made.append(pair_run(pair, order, side, mode, walls[len(made)]))
    return made
