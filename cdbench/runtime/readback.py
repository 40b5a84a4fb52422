"""Between host and device without waiting: what a launch is given, and what it says.

A GPU runs behind the host. A copy to or from ordinary host memory would first bring it up to the
host, so everything that goes over at a launch goes through pinned memory: inputs without waiting,
results with an event behind them that is waited for when the host needs the values, and not before.
On a CPU nothing has to be moved: results have arrived as soon as they are made.

A link has been tested with made-up events only: it has not been run on a GPU yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cdbench.runtime.core import BoolArray, FloatArray, IntArray

Array = npt.NDArray[Any]
Take = Callable[..., None]
"""Given the arrays of a readback, in the order in which they were fetched."""


def to_device(array: Array, device: torch.device) -> Tensor:
    """A host array on a device, without waiting. On a CPU it is the array's own memory."""
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host
    # The allocator of pinned memory keeps what was copied from until the copy has been made.
    return host.pin_memory().to(device, non_blocking=True)


def put(target: Tensor, array: Array) -> None:
    """Overwrite a tensor with a host array of its shape, without waiting."""
    host = torch.from_numpy(array)
    if target.device.type != "cpu":
        host = host.pin_memory()
    target.copy_(host, non_blocking=True)


class Readback(Protocol):
    """Values of a device on their way to the host."""

    @property
    def arrived(self) -> bool:
        """Whether ``wait`` would return at once."""
        ...

    def wait(self) -> tuple[Array, ...]:
        """The values, once they are there."""
        ...


class Link(Protocol):
    """The way from a device to the host."""

    def fetch(self, *tensors: Tensor) -> Readback:
        """Begin to copy these tensors to the host. They may be overwritten by later launches."""
        ...


@dataclass(frozen=True)
class Here:
    """Values that are on the host already."""

    arrays: tuple[Array, ...]
    arrived: bool = True

    def wait(self) -> tuple[Array, ...]:
        return self.arrays


class HostLink:
    """The link of a CPU: results are fresh tensors, handed over as they are."""

    def fetch(self, *tensors: Tensor) -> Readback:
        return Here(tuple(tensor.numpy() for tensor in tensors))


class CopyEvent(Protocol):
    """A point of a device's work, as ``torch.cuda.Event`` has it."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class OnItsWay:
    """Copies under way, and the event behind them."""

    def __init__(self, hosts: tuple[Tensor, ...], event: CopyEvent) -> None:
        self._hosts = hosts
        self._event: CopyEvent | None = event

    @property
    def arrived(self) -> bool:
        return self._event is None or self._event.query()

    def wait(self) -> tuple[Array, ...]:
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return tuple(host.numpy() for host in self._hosts)


class EventLink:
    """Copies into pinned memory, with one event behind all that a launch fetches."""

    def __init__(self, make_event: Callable[[], CopyEvent], pinned: bool = True) -> None:
        self._make_event, self._pinned = make_event, pinned

    def fetch(self, *tensors: Tensor) -> Readback:
        hosts = []
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pinned)
            hosts.append(host.copy_(tensor, non_blocking=True))
        event = self._make_event()
        event.record()
        return OnItsWay(tuple(hosts), event)


def link_of(device: torch.device) -> Link:
    """The link for a device."""
    return EventLink(_cuda_event) if device.type == "cuda" else HostLink()


def _cuda_event() -> CopyEvent:
    event: CopyEvent = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


class Awaited:
    """What launches have yet to tell the host, oldest first, and what is to be done with it."""

    def __init__(self) -> None:
        self._left: deque[tuple[Readback, Take]] = deque()

    def __len__(self) -> int:
        return len(self._left)

    def expect(self, readback: Readback, take: Take) -> None:
        """Have ``take`` called with the values: now if they are there, else when they are taken.

        Whatever was expected earlier is taken earlier.
        """
        self._left.append((readback, take))
        while self._left and self._left[0][0].arrived:
            self._take_oldest()

    def take_all(self) -> None:
        """Take everything that is expected, waiting for it where need be."""
        while self._left:
            self._take_oldest()

    def _take_oldest(self) -> None:
        readback, take = self._left.popleft()
        take(*readback.wait())


@dataclass(frozen=True)
class LoopTests:
    """What is seen of some residents after ``loops``, on its way to the host.

    The readback has whether each one's rule is met and, where gates were asked, whose calls an exit
    after the next loop; None where nothing was tested.
    """

    residents: IntArray
    loops: IntArray
    readback: Readback | None

    def wait(self) -> BoolArray:
        """Whose rule is met."""
        if self.readback is None:
            return np.zeros(self.residents.size, np.bool_)
        met: BoolArray = self.readback.wait()[0]
        return met


@dataclass(frozen=True)
class Chosen:
    """What a readout has chosen for its rows, on its way to the host.

    The readback has the tokens, their raw logprobs and, where the readout was tested, whether each
    row's rule is met. ``mask`` says which of the rows are meant (None: all of them).
    """

    readback: Readback
    mask: BoolArray | None = None

    @staticmethod
    def known(tokens: IntArray, logprobs: FloatArray) -> Chosen:
        """What the host has chosen itself."""
        return Chosen(Here((tokens, logprobs)))

    def of(self, mask: BoolArray) -> Chosen:
        """The same of some of the rows."""
        return Chosen(self.readback, mask)

    def wait(self) -> tuple[IntArray, FloatArray]:
        """The tokens and their raw logprobs."""
        return self.read(*self.readback.wait())

    def met(self) -> BoolArray:
        """Whose rule is met by the readout, of all its rows."""
        tokens, _, *met = self.readback.wait()
        return met[0] if met else np.zeros(tokens.size, np.bool_)

    def read(self, tokens: Array, logprobs: Array, *_: Array) -> tuple[IntArray, FloatArray]:
        """The tokens and logprobs meant, out of the readback's arrays."""
        if self.mask is None:
            return tokens, logprobs
        return tokens[self.mask], logprobs[self.mask]
