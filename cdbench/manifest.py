"""What was run, on what: enough to tell whether two results may be compared.

Everything is read where it can be and null where it cannot; collecting never fails. No user or host
name enters, and no path but what was typed on the command line.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from cdbench.machine import facts
from cdbench.machine.unchanged import sha256_file, source_sha256
from cdbench.schema import CpuInfo, DeviceInfo, GitState, Manifest, ModelIdentity

PACKAGES = ("torch", "triton", "numpy", "scipy", "transformers", "tokenizers", "safetensors")

ENV_FLAGS = (
    "OMP_NUM_THREADS",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_WAIT_POLICY",
    "GOMP_CPU_AFFINITY",
    "GOMP_SPINCOUNT",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE",
    "TRITON_INTERPRET",
    "PYTHONOPTIMIZE",
    "PYTHONHASHSEED",
)
"""Variables that change speed or numerics. Values are recorded as they are: none names a person."""

_GIT_TIMEOUT_S = 10


def collect(
    models: Sequence[ModelIdentity] = (),
    *,
    device: str = "cpu",
    argv: Sequence[str] | None = None,
) -> Manifest:
    """The manifest of a run that starts now. ``device``: a torch device string; ``argv`` as typed.

    Facts about torch are read only where it is loaded already: collecting must not cost seconds.
    """
    torch_threads, interop_threads = _torch_threads()
    return Manifest(
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=typed_command(sys.argv if argv is None else argv),
        cdbench_version=_version("cdbench"),
        git=git_state(Path(__file__).resolve().parent),
        source_sha256=source_sha256(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        ram_bytes=int(psutil.virtual_memory().total),
        load_average=facts.load_average(),
        torch_threads=torch_threads,
        torch_interop_threads=interop_threads,
        device=device_info(device),
        env={name: os.environ[name] for name in ENV_FLAGS if name in os.environ},
        models=list(models),
    )


def identify(name: str, files: Iterable[Path]) -> ModelIdentity:
    """A model's name (of a directory: its last part) and the sha256 of its files.

    Raises:
        OSError: a file cannot be read.
    """
    # Only a directory on this machine has parts that must not be told; a hub id keeps its owner.
    path = Path(name)
    local = path.is_absolute() or name.startswith((".", "~")) or path.exists()
    return ModelIdentity(
        name=path.resolve().name if local else name,
        files={file.name: sha256_file(file) for file in files},
    )


def git_state(package: Path) -> GitState | None:
    """The checkout whose top level holds ``package``; None elsewhere.

    An environment inside some other repository must not report that repository's commit.
    """
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != package.parent.resolve():
        return None
    commit, changes = (
        _git(package, "rev-parse", "HEAD"),
        _git(package.parent, "status", "--porcelain"),
    )
    if commit is None or changes is None:
        return None
    return GitState(commit=commit, dirty=bool(changes))


def device_info(device: str) -> DeviceInfo:
    """What a torch device string stands for. Details need torch loaded and the device present."""
    kind = device.partition(":")[0]
    if kind != "cuda" or "torch" not in sys.modules:
        return DeviceInfo(kind=kind)
    import torch

    if not torch.cuda.is_available():
        return DeviceInfo(kind=kind)
    properties = torch.cuda.get_device_properties(device)
    return DeviceInfo(
        kind=kind,
        name=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        memory_bytes=int(properties.total_memory),
        runtime=torch.version.cuda,
    )


def typed_command(argv: Sequence[str]) -> list[str]:
    """The program by name only: where it is installed was not typed."""
    return [Path(argv[0]).name, *argv[1:]] if argv else []


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package), "__version__", None)


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _torch_threads() -> tuple[int | None, int | None]:
    if "torch" not in sys.modules:
        return None, None
    import torch

    return torch.get_num_threads(), torch.get_num_interop_threads()


def _cpu() -> CpuInfo:
    return CpuInfo(
        model=cpu_model(),
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        affinity=facts.affinity(),
        quota_cores=facts.quota_cores(),
        governor=facts.governor(),
    )


def cpu_model() -> str | None:
    """The processor's name; None where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or None
