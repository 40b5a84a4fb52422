"""Which attention backend a launch uses: what was asked for, and what there is.

``sdpa`` gathers rows and calls PyTorch; it runs anywhere and is the reference. ``triton`` reads
decode rows in place, on a GPU.
"""

from __future__ import annotations

from typing import Literal

import torch

from cdbench.errors import UsageError
from cdbench.models.compiled import has_triton
from cdbench.runtime.attention.sdpa import SdpaPlan

Backend = Literal["sdpa", "triton"]


def choose_backend(asked: str, device: torch.device) -> Backend:
    """The backend of an engine on a device: ``auto`` is triton on a GPU where it is installed.

    Raises UsageError where the one asked for cannot run.
    """
    if asked == "sdpa":
        return "sdpa"
    if asked == "auto":
        return "triton" if device.type == "cuda" and has_triton() else "sdpa"
    if asked != "triton":
        raise UsageError(f"attention {asked!r}: unknown; use auto, sdpa or triton")
    if not has_triton():
        raise UsageError(
            "engine.attention: 'triton' needs the package triton, which cannot be imported; "
            "install it, or use auto"
        )
    if device.type != "cuda" and not is_interpreted():
        raise UsageError(
            f"engine.attention: 'triton' runs on a GPU, and this is {device.type}; use auto or sdpa"
        )
    return "triton"


def avoid_plans_by_shape(device: torch.device) -> None:
    """Keep torch from attention through cuDNN, which makes a plan for every shape it meets.

    Decode launches have another number of rows or another context almost every time.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def plan_class(backend: Backend) -> type[SdpaPlan]:
    """The class that a backend's plans are made from."""
    if backend == "sdpa":
        return SdpaPlan
    # Imported by who uses it alone: it takes time, and is not everywhere.
    from cdbench.runtime.attention.triton_plan import TritonPlan

    return TritonPlan


def is_interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, as tests on a CPU do."""
    from cdbench.runtime.attention import triton_kernels

    return triton_kernels.IS_INTERPRETED
