"""What was run, on what: enough to tell whether two results may be compared.

Everything is read where it can be and null where it cannot; collecting never fails. No user or host
name enters, and no path but what was typed on the command line.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

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
    "PYTHONOPTIMIZE",
    "PYTHONHASHSEED",
)
"""Variables that change speed or numerics. Values are recorded as they are: none names a person."""

_GIT_TIMEOUT_S = 10
_HASH_CHUNK_BYTES = 1 << 20


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
        command=_command(sys.argv if argv is None else argv),
        cdbench_version=_version("cdbench"),
        git=git_state(Path(__file__).resolve().parent),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        ram_bytes=int(psutil.virtual_memory().total),
        load_average=_load_average(),
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


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


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


def _command(argv: Sequence[str]) -> list[str]:
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
        model=_cpu_model(),
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        affinity=_affinity(),
        quota_cores=_quota_cores(),
        governor=_read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    )


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or None


def _affinity() -> list[int] | None:
    if not hasattr(os, "sched_getaffinity"):
        return None
    return sorted(os.sched_getaffinity(0))


def _quota_cores() -> float | None:
    """Cores a container may use (cgroup v2): affinity does not show that limit."""
    line = _read_line("/sys/fs/cgroup/cpu.max")
    if line is None:
        return None
    quota, _, period = line.partition(" ")
    if not quota.isdigit() or not period.isdigit():
        return None
    return int(quota) / int(period)


def _load_average() -> list[float] | None:
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def _read_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
