"""What a CUDA machine can tell that a CPU cannot, in one JSON document and a few minutes.

    python scripts/gpu_check.py --out results/gpu-check.json
    python scripts/gpu_check.py --device cpu --tiny          # the same lines, small, anywhere

Parts, each timed and each kept even where a later one fails:

- ``fixtures``: the official Ouro and Huginn outputs in float32 (TF32 off), all requests in one
  engine per layout, in ``cdb`` and ``lockstep``, at ease and pressed: a KV pool so small that
  requests are moved to host memory in the middle of tokens, prompts in chunks of three, prefixes
  cached. Anything but 0 wrong cases is a fault.
- ``exact``: the looped demos in float64, pressed in the same way, against one request at a time.
  Anything but 0 changed requests is a fault.
- ``changed``: the looped demos in bfloat16 and float32, ``cdb`` at full width against one request
  at a time: the share of requests whose tokens change, and where the first one parts. Matrix
  kernels round by batch shape, so this is a property of the machine and not a fault.
- ``demo``: the demo model's modes on equal work, on its tasks' prompts (accuracy needs lm-eval).
- ``ouro_1_4b``, ``huginn_3_5b``: the published shapes with RANDOM weights at width 64 in bfloat16,
  on random prompts with REPLAYED synthetic depths, ``static`` against ``cdb``: timings only.

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
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from cdbench import manifest  # noqa: E402  (the checkout is the package)
from cdbench.bench.benchmark import run_benchmark  # noqa: E402
from cdbench.bench.plan import Plan, make_plan  # noqa: E402
from cdbench.cli.progress import Lines  # noqa: E402
from cdbench.config import load_config  # noqa: E402
from cdbench.evals.tasks import load_task  # noqa: E402
from cdbench.models.loading import load_model  # noqa: E402
from cdbench.runtime.core import ExitPolicy, Request  # noqa: E402
from cdbench.runtime.engine import Engine, EngineConfig  # noqa: E402
from cdbench.schema import GenerateDocument, GeneratedRequest, to_json  # noqa: E402
from cdbench.workloads.resolve import stops  # noqa: E402

FIXTURES = ROOT / "tests" / "fixtures"
LOOPED_DEMOS = ("demo-ouro", "demo-huginn", "demo-ut")
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
HUGINN_3_5B = {
    "model_type": "huginn_raven",
    "injection_type": "linear",
    "norm_eps": 1e-6,
    "n_embd": 5280,
    "n_heads": 55,
    "block_size": 4096,
    "vocab_size": 65536,
    "padding_multiple": 4096,
    "intermediate_size": 17920,
    "mean_recurrence": 32,
    "n_layers_in_prelude": 2,
    "n_layers_in_recurrent_block": 4,
    "n_layers_in_coda": 2,
    "rope_base": 50000,
    "tie_embeddings": True,
    "qk_bias": True,
    "torch_dtype": "bfloat16",
}
TINY_HUGINN = {
    **HUGINN_3_5B,
    "n_embd": 64,
    "n_heads": 4,
    "vocab_size": 256,
    "padding_multiple": 1,
    "intermediate_size": 128,
}


def pressed(config: EngineConfig, network: Any, positions: int) -> EngineConfig:
    """The same engine with barely room for its longest request, small chunks and cached prefixes.

    Read back from memory and from other requests' rows, every key must still be the right one.
    """
    shape = Engine(network, config).cache.shape
    return replace(
        config,
        kv_budget_bytes=shape.budget_for(positions + positions // 2),
        prefill_tokens=3,
        prefix_cache=True,
    )


def fixtures(args: argparse.Namespace) -> dict[str, Any]:
    """Wrong cases per checkpoint, mode and layout; all must be 0."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    layouts = ("per-loop",) if args.tiny else ("per-loop", "first-shared", "shared")
    found = {}
    for name in ("ouro-nano", "huginn-nano"):
        expected = json.loads((FIXTURES / name / "expected.json").read_text())
        network = load_model(str(FIXTURES / name), dtype="float32", device=args.device).network
        for mode in ("cdb", "lockstep"):
            for layout in layouts:
                cases = {str(i): c for i, c in enumerate(expected["cases"]) if c["kv"] == layout}
                if args.tiny:
                    cases = dict(list(cases.items())[::8])
                config = EngineConfig(mode=mode, max_residents=128, kv_layout=layout)
                told = _wrong_cases(Engine(network, config), cases, expected)
                found[f"{name} {mode} {layout} at ease"] = told
                if mode == "cdb":
                    # Few at a time, so many launches: a quarter of the cases will do.
                    few = cases if args.tiny else dict(list(cases.items())[::4])
                    longest = max(_case("", c, expected).positions for c in few.values())
                    engine = Engine(network, pressed(config, network, longest))
                    found[f"{name} {layout} pressed"] = _wrong_cases(engine, few, expected)
    return found


def _case(name: str, case: Any, expected: Any) -> Request:
    threshold = None if case["rule"] == "none" else case["threshold"]
    return Request(
        id=name,
        prompt=expected["prompts"][case["prompt"]],
        max_new_tokens=len(case["tokens"]),
        exit=ExitPolicy(case["rule"], threshold, case["min_loops"], case["exit_lag"]),
        force=case["tokens"] if case["forced"] else None,
    )


def _wrong_cases(engine: Engine, cases: Any, expected: Any) -> dict[str, int]:
    requests = [_case(name, case, expected) for name, case in cases.items()]
    wrong = sum(
        r.tokens != cases[r.id]["tokens"] or r.executed_depths != cases[r.id]["depths"]
        for r in engine.run(requests)
    )
    return {"cases": len(cases), "wrong": wrong, **_pressure(engine)}


def _pressure(engine: Engine) -> dict[str, int]:
    """What the engine had to do for want of KV rows, and how many prompt tokens it found cached."""
    counted = engine.memory.counters
    return {
        "preemptions": counted.preemptions,
        "mid_token": counted.mid_token,
        "prefix_tokens": engine.cache.prefix_tokens,
    }


def exact(args: argparse.Namespace) -> dict[str, Any]:
    """Requests of the looped demos that pressure changes in float64; all must be 0."""
    found = {}
    for name in LOOPED_DEMOS[:1] if args.tiny else LOOPED_DEMOS:
        plan, requests = _questions(args, name, "float64", 1 if args.tiny else args.questions)
        network = plan.model.network
        config = EngineConfig(max_residents=32, width=16)
        engine = Engine(network, pressed(config, network, max(r.positions for r in requests)))
        parted = _parted(engine, Engine(network, EngineConfig(max_residents=1)), requests)
        found[name] = {"requests": len(requests), "changed": len(parted), **_pressure(engine)}
    return found


def changed(args: argparse.Namespace) -> dict[str, Any]:
    """Share of demo requests whose tokens depend on the batch, by dtype."""
    found = {}
    for name in LOOPED_DEMOS[:1] if args.tiny else LOOPED_DEMOS:
        for dtype in ("bfloat16", "float32"):
            plan, requests = _questions(args, name, dtype, 1 if args.tiny else args.questions)
            together = Engine(plan.model.network, EngineConfig(max_residents=128))
            alone = Engine(plan.model.network, EngineConfig(max_residents=1))
            parted = _parted(together, alone, requests)
            found[f"{name} {dtype}"] = {
                "requests": len(requests),
                "changed": len(parted),
                "first_divergence_tokens": min(parted, default=None),
            }
    return found


def _questions(
    args: argparse.Namespace, model: str, dtype: str, limit: int
) -> tuple[Plan, list[Request]]:
    keys = {"model": model, "dtype": dtype, "dense": "", "work": "equal"}
    plan = make_plan(_config(args, {**keys, "workload.source": "random"}))
    requests = []
    for task in (load_task(name, limit) for name in plan.model.card.tasks):
        stop_ids, stop_strings = stops(plan.model, task.stops)
        requests += [
            Request(
                id=f"{task.name}/{document.doc_id}",
                prompt=plan.model.encode(document.prompt),
                max_new_tokens=task.max_new_tokens,
                exit=plan.policy,
                stop_ids=stop_ids | plan.model.stop_ids,
                stop_strings=stop_strings,
            )
            for document in task.documents
        ]
    return plan, requests


def _parted(together: Engine, alone: Engine, requests: list[Request]) -> list[int]:
    """Where each request that differs between two engines first does, in tokens."""
    one = {r.id: r for r in alone.run(requests)}
    return [
        next(
            (i for i, (a, b) in enumerate(zip(one[r.id].tokens, r.tokens, strict=False)) if a != b),
            min(len(one[r.id].tokens), len(r.tokens)),
        )
        for r in together.run(requests)
        if (r.tokens, r.executed_depths) != (one[r.id].tokens, one[r.id].executed_depths)
    ]


def demo(args: argparse.Namespace) -> dict[str, Any]:
    """The demo model on equal work: the whole ``result.json``."""
    _, requests = _questions(args, "demo", "float32", 1 if args.tiny else 40)
    flags: dict[str, Any] = {"model": "demo", "work": "equal", "workload.requests": 128}
    if args.tiny:
        flags |= {"workload.requests": 6, "repeats.blocks": 1, "dense": "demo-dense"}
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        draw = random.Random(0)
        draw.shuffle(requests)
        lines = [json.dumps({"prompt": list(request.prompt)}) for request in requests]
        prompts.write_text("\n".join(lines) + "\n")
        return _run(args, {**flags, "workload.source": str(prompts)})


def ouro_1_4b(args: argparse.Namespace) -> dict[str, Any]:
    """Ouro-1.4B's shape; later tokens at depths 1 to 4, shallow-heavy, mean 2."""
    config = TINY_OURO if args.tiny else OURO_1_4B
    return _synthetic(args, config, "cdf@0.5", (0.4, 0.3, 0.2, 0.1))


def huginn_3_5b(args: argparse.Namespace) -> dict[str, Any]:
    """Huginn's shape at R = 16; later tokens at depths 1 to 16, shallow-heavy."""
    config = TINY_HUGINN if args.tiny else HUGINN_3_5B
    return _synthetic(args, config, "latent-diff@0.1", tuple(range(16, 0, -1)))


def _synthetic(
    args: argparse.Namespace, config: dict[str, Any], rule: str, shares: tuple[float, ...]
) -> dict[str, Any]:
    """Random weights, random prompts, replayed depths: ``static`` and ``cdb`` at width 64, bf16."""
    size = (4, 8, 6) if args.tiny else (128, 128, 96)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "config.json").write_text(json.dumps(config))
        prompts, trace = _synthetic_trace(directory, int(config["vocab_size"]), rule, shares, size)
        return _run(
            args,
            {
                "model": str(directory),
                "weights": "random:0",
                "dtype": "bfloat16",
                "work": "equal",
                "modes": "static,cdb",
                "exit.rule": f"trace:{trace}",
                "exit.max_loops": len(shares),
                "workload.source": str(prompts),
                "workload.requests": size[0],
                "engine.max_residents": 64,
                "engine.prefill_tokens": 4096,
                "repeats.blocks": 1 if args.tiny else 6,
                "repeats.max_seconds": args.seconds,
            },
        )


def _synthetic_trace(
    directory: Path,
    vocabulary: int,
    rule: str,
    shares: tuple[float, ...],
    size: tuple[int, int, int],
) -> tuple[Path, Path]:
    """Random prompts, and a trace with depths drawn by their shares; the live rule is paid for."""
    requests, prompt, output = size
    draw = random.Random(0)
    loops = range(1, len(shares) + 1)
    lines, recorded = [], []
    for index in range(requests):
        ids = [draw.randrange(vocabulary) for _ in range(prompt)]
        lines.append(json.dumps({"prompt": ids}))
        recorded.append(
            GeneratedRequest(
                index=index,
                prompt_tokens=prompt,
                tokens=[draw.randrange(vocabulary) for _ in range(output)],
                depths=[len(shares), *draw.choices(loops, shares, k=output - 1)],
                logprobs=[None] * output,
                text=None,
                finish_reason="length",
                error=None,
            )
        )
    document = GenerateDocument(
        model="synthetic",
        config={"exit": rule, "R": len(shares), "min_loops": 1, "exit_lag": 0},
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
        stages = "none" if args.tiny else None
        config = _config(args, {**flags, "stages": stages, "out": f"{folder}/run"})
        result, _ = run_benchmark(config, nullcontext(Lines(sys.stderr, "requests")))
    kept: dict[str, Any] = json.loads(to_json(result))
    return kept


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "fixtures": fixtures,
    "exact": exact,
    "changed": changed,
    "demo": demo,
    "ouro_1_4b": ouro_1_4b,
    "huginn_3_5b": huginn_3_5b,
}


def check(args: argparse.Namespace) -> dict[str, Any]:
    """Every part asked for; one that fails leaves its traceback and the others go on.

    The document is written after each part, so that a run cut short keeps what it has.
    """
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
        _write(args, document)
    return document


def _write(args: argparse.Namespace, document: dict[str, Any]) -> None:
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(document, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    """Write the document; 1 where a part failed or a case is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small sizes, for a CPU test")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--questions", type=int, default=3, help="per demo task")
    parser.add_argument("--seconds", type=float, default=40, help="of blocks of a timed part")
    parser.add_argument("--out", type=Path, help="default: standard output")
    args = parser.parse_args(argv)
    document = check(args)
    if args.out is None:
        print(json.dumps(document, indent=1))
    failed = [name for name in args.parts if "failed" in document[name]]
    faults = [
        case[key]
        for part, key in (("fixtures", "wrong"), ("exact", "changed"))
        for case in document.get(part, {}).values()
        if isinstance(case, dict)
    ]
    return 1 if failed or any(faults) else 0


if __name__ == "__main__":
    sys.exit(main())
