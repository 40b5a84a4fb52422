"""The name of a machine: what has to be the same for times to be compared."""

from __future__ import annotations

import hashlib
import json
import re

from cdbench.schema import Manifest

CHARACTERS = 8


def fingerprint(manifest: Manifest) -> str:
    """``xeon-2-cores-1-thread-1f0c9a7b``: readable, and told apart by the last part.

    Processor, cores this process may use, quota, threads that torch computes on, and the device.
    Software is left out: it is what one compares.
    """
    device, cpu = manifest.device, manifest.cpu
    cores = len(cpu.affinity) if cpu.affinity is not None else cpu.logical_cores
    facts = {
        "cpu": cpu.model,
        "cores": cores,
        "quota": cpu.quota_cores,
        "threads": manifest.torch_threads,
        "device": [device.kind, device.name, device.capability, device.memory_bytes],
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:CHARACTERS]
    words = [device.name or cpu.model or device.kind]
    if device.kind == "cpu":
        words += [_count(cores, "core"), _count(manifest.torch_threads, "thread")]
    return f"{_slug(' '.join(words))}-{digest}"


def _count(number: int | None, what: str) -> str:
    return "" if number is None else f"{number} {what}{'' if number == 1 else 's'}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
