"""What a CUDA machine can tell that a CPU cannot, in one JSON document and under six minutes.

    python scripts/gpu_check.py --out results/gpu-check.json
    python scripts/gpu_check.py --list                  # the parts, and what each may take
    python scripts/gpu_check.py --device cpu --tiny --out check.json   # the same lines, small

Parts run in the order of their worth, each within a time of its own, until ``--budget-s`` is spent;
one that would not fit any more is skipped and says so. The document is written after each part. A
part that brings down its process, as an error on a GPU can, costs itself and no other: the rest
goes on in a new one. At the end standard output has the figures on one screen.

Parts that compare tokens (``fixtures``, ``graphs``, ``attention``, ``exact``) count faults: there
must be none. Timed parts have the published shapes with RANDOM weights, made on the device, random
prompts and REPLAYED SYNTHETIC depths: timings only.

It runs from a bare checkout with torch, transformers, rich, typer, pyyaml and scipy; what else is
needed, pydantic above all, may lie in ``wheels/``. Neither datasets nor lm-eval is asked for.
``docs/gpu-check.md`` says what each part measures.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.gpu_parts.command import main

if __name__ == "__main__":
    sys.exit(main())
