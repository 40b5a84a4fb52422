"""How a launch becomes something to replay: a CUDA graph, or on a CPU the function itself.

Either way a replay writes its results into the same tensors, so that a result that is used too late
is wrong on both.

The CUDA recorder has not been run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]
WARM_UPS = 2
"""Times that a function runs before it is captured: libraries choose their kernels meanwhile."""


class Graph(Protocol):
    """A recorded function."""

    def replay(self) -> Outputs:
        """Run it again on its tensors as they are now; its results are the same tensors each time.

        On a GPU they are there once the device has come so far.
        """
        ...


class Recorder(Protocol):
    """Records functions of device operations over tensors that stay where they are."""

    def record(self, function: Callable[[], Outputs]) -> Graph:
        """Record a function that may be run any number of times meanwhile."""
        ...

    @property
    def bytes(self) -> int:
        """Memory that what was recorded holds beside its inputs."""
        ...


class HostRecorder:
    """Records by remembering the function."""

    def __init__(self) -> None:
        self._made: WeakSet[HostGraph] = WeakSet()

    def record(self, function: Callable[[], Outputs]) -> Graph:
        graph = HostGraph(function)
        self._made.add(graph)
        return graph

    @property
    def bytes(self) -> int:
        kept = (result for graph in self._made for result in graph.outputs)
        return sum(result.numel() * result.element_size() for result in kept)


class HostGraph:
    """A function, and the tensors that its results are written into."""

    def __init__(self, function: Callable[[], Outputs]) -> None:
        self._function = function
        self.outputs: Outputs = tuple(torch.empty_like(result) for result in function())

    def replay(self) -> Outputs:
        for kept, result in zip(self.outputs, self._function(), strict=True):
            kept.copy_(result)
        return self.outputs


class CudaRecorder:
    """Captures CUDA graphs; all of them have their memory from one pool.

    Graphs of one pool are never replayed at the same time, and their results are held as long as
    they live, so one may use the memory of another's intermediate values.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], Outputs]) -> Graph:
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                function()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Another thread's calls, such as a monitor's, must not spoil a capture.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            outputs = function()
        return CudaGraph(graph, outputs)

    @property
    def bytes(self) -> int:
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return pool_bytes(segments, self._pool)


class CudaGraph:
    """A captured graph and the tensors its kernels write."""

    def __init__(self, graph: torch.cuda.CUDAGraph, outputs: Outputs) -> None:
        self._graph, self._outputs = graph, outputs

    def replay(self) -> Outputs:
        self._graph.replay()
        return self._outputs


def recorder_of(device: torch.device) -> Recorder:
    """The recorder for a device."""
    return CudaRecorder(device) if device.type == "cuda" else HostRecorder()


def pool_bytes(segments: list[dict[str, Any]], pool: tuple[int, int]) -> int:
    """Bytes of a memory pool, from the segments of an allocator's snapshot."""
    return sum(
        int(segment["total_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", ())) == tuple(pool)
    )
