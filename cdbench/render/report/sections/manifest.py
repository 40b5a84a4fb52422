"""What was run, on what, and the whole configuration."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from cdbench.bench.again import repeated_lines
from cdbench.render.formats import si_bytes
from cdbench.render.report.parts import Facts, Folded, Listing, Points, Section
from cdbench.render.report.source import ReportRun
from cdbench.schema import Manifest


def manifest(run: ReportRun) -> Section:
    """Facts, then versions, model files and configuration folded."""
    found = run.result.manifest
    versions = tuple((name, version or "absent") for name, version in found.packages.items())
    files = tuple(
        (f"{model.name}: {name}", digest)
        for model in found.models
        for name, digest in model.files.items()
    )
    config = yaml.safe_dump(run.result.config, sort_keys=False, allow_unicode=True)
    parts = (
        Facts(tuple(_facts(run))),
        Folded("Package versions", (Facts(versions),)),
        *((Folded("Model files (sha256)", (Facts(files),)),) if files else ()),
        *_repeated(found),
        Folded("Configuration, resolved", (Listing("configuration", config.rstrip()),)),
    )
    return Section("manifest", "Manifest and configuration", parts)


def _facts(run: ReportRun) -> Iterator[tuple[str, str]]:
    found, workload = run.result.manifest, run.result.workload
    yield "run", run.name
    yield "started", found.started_utc
    yield "cdbench", _code(found)
    yield "python", f"{found.python}, {found.platform}"
    yield "processor", _processor(found)
    if found.ram_bytes is not None:
        yield "memory", si_bytes(found.ram_bytes)
    yield "device", _device(found)
    threads = (found.torch_threads, found.torch_interop_threads)
    if threads[0] is not None:
        yield "torch threads", f"{threads[0]} of one operation, {threads[1]} between operations"
    if found.load_average:
        yield "load average", ", ".join(f"{load:.2f}" for load in found.load_average)
    if found.env:
        yield "environment", ", ".join(f"{name}={value}" for name, value in found.env.items())
    if workload.hash:
        yield "workload", f"sha256 {workload.hash}"


def _code(found: Manifest) -> str:
    words = [found.cdbench_version or "unknown version"]
    if found.git is not None:
        words.append(f"commit {found.git.commit[:12]}{' (changed)' if found.git.dirty else ''}")
    if found.source_sha256:
        words.append(f"source sha256 {found.source_sha256[:12]}")
    return ", ".join(words)


def _processor(found: Manifest) -> str:
    cpu = found.cpu
    usable = f"{len(cpu.affinity)} usable" if cpu.affinity else None
    counts = (
        f"{cpu.logical_cores} logical cores" if cpu.logical_cores else None,
        f"{cpu.physical_cores} physical" if cpu.physical_cores else None,
        usable,
        f"quota {cpu.quota_cores:g}" if cpu.quota_cores else None,
        f"governor {cpu.governor}" if cpu.governor else None,
    )
    return ", ".join([cpu.model or "unknown", *(count for count in counts if count)])


def _device(found: Manifest) -> str:
    device = found.device
    parts = (
        device.name,
        f"capability {device.capability}" if device.capability else None,
        si_bytes(device.memory_bytes) if device.memory_bytes else None,
        f"CUDA {device.runtime}" if device.runtime else None,
    )
    return ", ".join([device.kind, *(part for part in parts if part)])


def _repeated(found: Manifest) -> tuple[Folded, ...]:
    """Which run this one repeats, where it does."""
    if found.repeated is None:
        return ()
    lines = tuple(repeated_lines(found.repeated))
    return (Folded("The run that this one repeats", (Points(lines),)),)
