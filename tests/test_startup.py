"""What looks things up starts without torch and its kin: they take seconds to load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cdbench.cli.verbs import VERBS

ROOT = Path(__file__).parent.parent
HEAVY = (
    "torch",
    "transformers",
    "scipy",
    "matplotlib",
    "datasets",
    "lm_eval",
    "tokenizers",
    "safetensors",
    "huggingface_hub",
)
LOOKUPS = (
    ["--version"],
    ["--help"],
    *([verb, "--help"] for verb in VERBS),
    ["config", "check"],
    ["config", "show"],
    ["config", "schema"],
    ["list", "tasks"],
)
LIGHT = (["list", "metrics"], ["run", "--modes", "statc"], ["generate", "demo"])
"""These may use numpy: formulas, and refusals that come before any model is loaded."""

SCRIPT = """
import contextlib, io, json, sys
from cdbench.cli.main import main
for commands, heavy in json.loads(sys.argv[1]):
    for command in commands:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(command)
        loaded = [name for name in heavy if name in sys.modules]
        if loaded:
            sys.exit(f"cdbench {' '.join(command)} loads {', '.join(loaded)}")
"""


def test_looking_things_up_loads_nothing_heavy() -> None:
    """One process for all, so the first command that loads something is the one that is named."""
    groups = json.dumps([(LOOKUPS, (*HEAVY, "numpy")), (LIGHT, HEAVY)])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, groups], capture_output=True, cwd=ROOT, text=True
    )
    assert done.returncode == 0, done.stderr
