"""What a CUDA machine can tell that a CPU cannot, in one JSON document and under four minutes.

    python scripts/gpu_check.py --out results/gpu-check.json
    python scripts/gpu_check.py --device cpu --tiny          # the same lines, small, anywhere

Four parts, each timed and each kept even where a later one fails:

- ``fixtures``: the official Ouro outputs in float32 (TF32 off), all requests in one engine per
  layout, in ``cdb`` and ``lockstep``. Anything but 0 wrong cases is a fault.
- ``changed``: the demo in bfloat16 and float32, ``cdb`` at full width against one request at a
  time: the share of requests whose tokens change, and where the first one parts. Matrix kernels
  round by batch shape, so this is a property of the machine and not a fault.
- ``demo``: the demo run of ``cdbench run``, shortened.
- ``ouro_1_4b``: the published Ouro-1.4B shape with RANDOM weights at width 64 in bfloat16, on
  random prompts with REPLAYED synthetic depths, ``static`` against ``cdb``: timings only.

It needs torch, transformers, rich, typer, pyyaml, scipy and pydantic; neither datasets nor lm-eval.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.bench.directory import RunDirectory  # noqa: E402
from cdbench.bench.plan import make_plan  # noqa: E402
from cdbench.bench.session import Session  # noqa: E402
from cdbench.bench.summary import start_manifest, summarise  # noqa: E402
from cdbench.bench.workload import prepare  # noqa: E402
from cdbench.cli.progress import Lines  # noqa: E402
from cdbench.config import load_config  # noqa: E402
from cdbench.models.loading import load_model  # noqa: E402
from cdbench.runtime.core import ExitPolicy, Request  # noqa: E402
from cdbench.runtime.engine import Engine, EngineConfig  # noqa: E402
from cdbench.schema import GenerateDocument, GeneratedRequest, Result, to_json  # noqa: E402

FIXTURE = ROOT / "tests" / "fixtures" / "ouro-nano"
OURO_1_4B = {
    "model_type": "ouro",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "vocab_size": 49152,
    "max_position_embeddings": 65536,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "total_ut_steps": 4,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
TINY_OURO = {
    **OURO_1_4B,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
}
SYNTHETIC_DEPTHS = (0.4, 0.3, 0.2, 0.1)
"""Share of later tokens at depths 1 to 4: the shallow-heavy ramp, mean 2.0."""


def fixtures(args: argparse.Namespace) -> dict[str, Any]:
    """Wrong cases per mode and layout; all must be 0."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    expected = json.loads((FIXTURE / "expected.json").read_text())
    model = load_model(str(FIXTURE), dtype="float32", device=args.device)
    layouts = ("per-loop",) if args.tiny else ("per-loop", "first-shared", "shared")
    return {
        f"{mode} {layout}": _wrong_cases(model.network, expected, mode, layout)
        for mode in ("cdb", "lockstep")
        for layout in layouts
    }


def _wrong_cases(network: Any, expected: Any, mode: str, layout: str) -> dict[str, int]:
    cases = {str(i): c for i, c in enumerate(expected["cases"]) if c["kv"] == layout}
    requests = [
        Request(
            id=name,
            prompt=expected["prompts"][case["prompt"]],
            max_new_tokens=len(case["tokens"]),
            exit=ExitPolicy(
                case["rule"],
                None if case["rule"] == "none" else case["threshold"],
                case["min_loops"],
                case["exit_lag"],
            ),
            force=case["tokens"] if case["forced"] else None,
        )
        for name, case in cases.items()
    ]
    engine = Engine(network, EngineConfig(mode=mode, max_residents=128, kv_layout=layout))
    wrong = sum(
        r.tokens != cases[r.id]["tokens"] or r.executed_depths != cases[r.id]["depths"]
        for r in engine.run(requests)
    )
    return {"cases": len(cases), "wrong": wrong}


def changed(args: argparse.Namespace) -> dict[str, Any]:
    """Share of demo requests whose tokens depend on the batch, by dtype."""
    limit = 2 if args.tiny else 12
    return {dtype: _changed_share(args, dtype, limit) for dtype in ("bfloat16", "float32")}


def _changed_share(args: argparse.Namespace, dtype: str, limit: int) -> dict[str, Any]:
    plan = make_plan(_config(args, {"model": "demo", "dtype": dtype, "limit": limit}))
    from cdbench.bench import live
    from cdbench.grammar import Mode

    requests = live.requests_for(plan, plan.subject(Mode("cdb")), live.questions(plan))
    together = {r.id: r for r in plan.engine(plan.subject(Mode("cdb"))).run(requests)}
    alone_engine = Engine(plan.model.network, EngineConfig(mode="cdb", max_residents=1))
    alone = {r.id: r for r in alone_engine.run(requests)}
    parted = [
        next(
            (i for i, (a, b) in enumerate(zip(alone[n].tokens, r.tokens, strict=False)) if a != b),
            min(len(alone[n].tokens), len(r.tokens)),
        )
        for n, r in together.items()
        if r.tokens != alone[n].tokens
    ]
    return {
        "requests": len(requests),
        "changed": len(parted),
        "first_divergence_tokens": min(parted, default=None),
    }


def demo(args: argparse.Namespace) -> dict[str, Any]:
    """A shortened demo run: the whole ``result.json``."""
    flags: dict[str, Any] = {"model": "demo", "limit": 40, "workload.requests": 128}
    if args.tiny:
        flags |= {"limit": 1, "workload.requests": 6, "repeats.blocks": 1, "dense": "demo-dense"}
    return _run(args, flags)


def ouro_1_4b(args: argparse.Namespace) -> dict[str, Any]:
    """Random weights, random prompts, replayed depths: ``static`` and ``cdb`` at width 64, bf16."""
    size = (4, 8, 6) if args.tiny else (128, 128, 96)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        config = TINY_OURO if args.tiny else OURO_1_4B
        (directory / "config.json").write_text(json.dumps(config))
        prompts, trace = _synthetic_trace(directory, int(config["vocab_size"]), *size)  # type: ignore[call-overload]
        return _run(
            args,
            {
                "model": str(directory),
                "weights": "random:0",
                "dtype": "bfloat16",
                "work": "equal",
                "modes": "static,cdb",
                "exit.rule": f"trace:{trace}",
                "workload.source": str(prompts),
                "workload.requests": size[0],
                "engine.prefill_tokens": 4096,
                "repeats.blocks": 1 if args.tiny else 6,
                "repeats.max_seconds": 60,
            },
        )


def _synthetic_trace(
    directory: Path, vocabulary: int, requests: int, prompt: int, output: int
) -> tuple[Path, Path]:
    """Random prompts, and a trace with depths from ``SYNTHETIC_DEPTHS``; the live gate is cdf."""
    draw = random.Random(0)
    loops = range(1, len(SYNTHETIC_DEPTHS) + 1)
    lines, recorded = [], []
    for index in range(requests):
        ids = [draw.randrange(vocabulary) for _ in range(prompt)]
        lines.append(json.dumps({"prompt": ids}))
        depths = [len(SYNTHETIC_DEPTHS), *draw.choices(loops, SYNTHETIC_DEPTHS, k=output - 1)]
        recorded.append(
            GeneratedRequest(
                index=index,
                prompt_tokens=prompt,
                tokens=[draw.randrange(vocabulary) for _ in range(output)],
                depths=depths,
                logprobs=[None] * output,
                text=None,
                finish_reason="length",
                error=None,
            )
        )
    document = GenerateDocument(
        model="synthetic",
        config={"exit": "cdf@0.5", "R": len(SYNTHETIC_DEPTHS), "min_loops": 1, "exit_lag": 0},
        requests=recorded,
    )
    prompts, trace = directory / "prompts.jsonl", directory / "trace.json"
    prompts.write_text("\n".join(lines) + "\n")
    trace.write_text(to_json(document))
    return prompts, trace


def _config(args: argparse.Namespace, flags: dict[str, Any]) -> Any:
    return load_config(None, (), {"device": args.device, **flags})


def _run(args: argparse.Namespace, flags: dict[str, Any]) -> dict[str, Any]:
    """One run through the library path of ``cdbench run``, its files thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        config = _config(args, flags)
        plan = make_plan(config)
        started = start_manifest(plan)
        work = prepare(plan)
        session = Session(
            plan, work, RunDirectory.create(f"{folder}/run", "check"), Lines(sys.stderr)
        )
        result: Result = summarise(plan, session.measure(), started)
    kept: dict[str, Any] = json.loads(to_json(result))
    return kept


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "fixtures": fixtures,
    "changed": changed,
    "demo": demo,
    "ouro_1_4b": ouro_1_4b,
}


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Every part asked for; one that fails leaves its traceback and the others go on."""
    document: dict[str, Any] = {
        "manifest": manifest.collect(device=args.device).model_dump(mode="json"),
        "tiny": args.tiny,
    }
    for name in args.parts:
        start = time.monotonic()
        try:
            document[name] = PARTS[name](args)
        except Exception:
            document[name] = {"failed": traceback.format_exc().splitlines()[-12:]}
        document[f"{name}_s"] = round(time.monotonic() - start, 2)
    return document


def main(argv: list[str] | None = None) -> int:
    """Write the document; 1 where a part failed or a fixture case is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU test")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, help="default: standard output")
    args = parser.parse_args(argv)
    document = check(args)
    text = json.dumps(document, indent=1) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    failed = [name for name in args.parts if "failed" in document[name]]
    wrong = sum(c["wrong"] for c in document.get("fixtures", {}).values() if isinstance(c, dict))
    return 1 if failed or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
