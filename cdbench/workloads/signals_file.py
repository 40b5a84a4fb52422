"""``signals.npz``: packed, and read back without trusting what it says of its own size."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cdbench.runtime.core import FloatArray
from cdbench.schema.recording import SignalsFile

_HEADER_BYTES = 1 << 16
"""More than a member has beyond its numbers."""
_MOST_EXPANSION = 1032
"""Bytes that deflate can make of one."""
_UNREADABLE = (OSError, EOFError, RuntimeError, OverflowError, zipfile.BadZipFile, zlib.error)


def pack_signals(
    signals: Sequence[FloatArray], max_loops: int, dtype: Literal["float32", "float64"]
) -> tuple[SignalsFile, bytes]:
    """``signals.npz`` and what the document says of it.

    A rule computes its signal in float32, or in float64 for a float64 model: nothing is rounded.
    """
    lengths = [len(s) for s in signals]
    lines = np.concatenate([np.empty((0, max_loops)), *signals], dtype=dtype, casting="same_kind")
    file = io.BytesIO()
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    np.savez_compressed(file, signals=np.ascontiguousarray(lines), offsets=offsets)
    content = file.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    return SignalsFile(sha256=digest, dtype=dtype, tokens=len(lines), loops=max_loops), content


def most_bytes(told: SignalsFile, requests: int) -> int:
    """More than a file of these sizes can have, however badly it was compressed."""
    numbers = told.tokens * told.loops * np.dtype(told.dtype).itemsize + 8 * (requests + 1)
    return numbers + numbers // 100 + 4 * _HEADER_BYTES


def unpack_signals(
    content: bytes, told: SignalsFile, lengths: Sequence[int]
) -> tuple[FloatArray, ...]:
    """The signals of requests with so many later tokens, one array ``[later tokens, R]`` each.

    Memory is taken only for what is wanted and can be in the file. Raises ValueError where it
    holds anything else.
    """
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    if told.tokens != offsets[-1]:
        raise ValueError("another number of lines")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sorted(archive.namelist()) != ["offsets.npy", "signals.npy"]:
                raise ValueError("other members")
            found = _member(archive, "offsets.npy", np.dtype(np.int64), offsets.shape)
            lines = _member(archive, "signals.npy", np.dtype(told.dtype), (told.tokens, told.loops))
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    if not np.array_equal(found, offsets):
        raise ValueError("lines of other requests")
    return tuple(lines[a:b] for a, b in pairwise(offsets.tolist()))


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """One array of a known kind and shape. Raises ValueError, before it takes memory, for others.

    A header may claim any shape and a directory any size: neither is believed.
    """
    info, size = archive.getinfo(name), math.prod(shape) * dtype.itemsize
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is compressed in another way")
    if not size < info.file_size < size + _HEADER_BYTES:
        raise ValueError(f"{name} has {info.file_size} bytes")
    if info.file_size > _MOST_EXPANSION * (info.compress_size + 1):
        raise ValueError(f"{name} claims more than it can hold")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"{name} is of another version")
        header = np.lib.format.read_array_header_1_0(file)
        if header != (shape, False, dtype):
            raise ValueError(f"{name} is another array")
        numbers = file.read(size + 1)
    if len(numbers) != size:
        raise ValueError(f"{name} is not whole")
    return np.frombuffer(bytearray(numbers), dtype).reshape(shape)
