"""Whether cells that should share a model or a workload did: files may change between them."""

from __future__ import annotations

from collections.abc import Sequence

from cdbench.config import RunConfig
from cdbench.schema import Result

OF_THE_MODEL = {"model", "weights", "layers"}
BESIDE_THE_WORKLOAD: dict[str, bool | set[str]] = {
    **dict.fromkeys(
        ("dense", "modes", "work", "equal", "engine", "stages", "repeats", "slo", "out"), True
    ),
    "price_per_hour": True,
    "kv": {"budget_bytes", "budget_fraction", "host_bytes", "prefix_cache"},
}
"""Keys that change what is timed, or how, and not what is asked and answered."""


def other_models(configs: Sequence[RunConfig], results: Sequence[Result]) -> list[str]:
    """A note where one model had different files in different cells; one result per config."""
    seen: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
    for config, result in zip(configs, results, strict=True):
        key = config.model_dump_json(include=OF_THE_MODEL)
        for model in result.manifest.models:
            seen.setdefault((key, model.name), set()).add(tuple(sorted(model.files.items())))
    changed = dict.fromkeys(name for (_, name), files in seen.items() if len(files) > 1)
    return [f"{name} had other files in some cells: do not compare them" for name in changed]


def other_workloads(configs: Sequence[RunConfig], results: Sequence[Result]) -> list[str]:
    """A note where cells that ask for the same work were given different work.

    A recorded workload may differ between cells by rounding alone: other widths, other machines.
    """
    seen: dict[str, set[str]] = {}
    for config, result in zip(configs, results, strict=True):
        key = config.model_dump_json(exclude=BESIDE_THE_WORKLOAD)
        if result.blocks:
            seen.setdefault(key, set()).add(result.workload.hash)
    most = max((len(hashes) for hashes in seen.values()), default=0)
    if most < 2:
        return []
    return [
        f"cells that ask for the same work were timed on {most} workloads (see workload.hash): a "
        "file has changed, or the recorded runs differ by rounding"
    ]
