"""Decode attention as a Triton kernel that reads keys and values in place, through the row table.

One program takes one query token, one key/value head and one part of the context. It walks that
part block by block: the table line says in which pool rows the block's positions lie, keys and
values are loaded from there, and a running maximum and sum make the softmax exact without a second
pass. All query heads that share the key/value head go together, so a row is read once.

Where a launch has few rows, one program per token and head would leave most of a GPU idle and make
a long context slow. Then the context is cut into parts, each a program of its own, and a second
kernel joins them (*flash-decoding*): two kernels, since the parts run at the same time and no
program may wait for another. With one part the first kernel writes the result itself.

Nothing here depends on the data on the host: a part's positions follow from the query's own
position, which is read on the device. Sums are in float32, of float64 rows in float64.

Shape letters beside the stage protocol's: M query heads of one key/value head, N positions of one
block, P parts. The ones in the kernels' shapes are powers of two, masked where there is less.
"""

# Triton reads the annotations of a kernel: they stay as they are, not postponed.
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

BLOCK_NUMBERS = 8192
"""Key numbers of one block, over all query heads: what four warps keep in registers."""
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 64
"""Positions of one block."""


@triton.jit  # type: ignore[untyped-decorator]
def _attend_part(
    queries: tl.tensor,
    pool: tl.tensor,
    table: tl.tensor,
    reads: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    GROUPS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    M: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    PRECISE: tl.constexpr,
) -> None:
    """One query token, key/value head and part; ``out`` and ``sums`` are ``[T, H, P, …]``."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    part = tl.program_id(2)
    heads = group * PER_GROUP + tl.arange(0, M)
    numbers = tl.arange(0, E)
    is_head = tl.arange(0, M) < PER_GROUP
    is_number = numbers < HEAD
    query_at = token * token_stride + heads[:, None] * head_stride + numbers[None, :]
    query_mask = is_head[:, None] & is_number[None, :]
    query = tl.load(queries + query_at, mask=query_mask, other=0.0).to(PRECISE)
    query = query / tl.sqrt(tl.full((1, 1), HEAD, PRECISE))

    line = tl.load(reads + 2 * token)
    context = tl.load(reads + 2 * token + 1) + 1
    length = tl.cdiv(tl.cdiv(context, N), PARTS) * N
    begin = part * length
    end = tl.minimum(begin + length, context)

    best = tl.full((M,), float("-inf"), PRECISE)
    total = tl.zeros((M,), PRECISE)
    summed = tl.zeros((M, E), PRECISE)
    for start in range(begin, end, N):
        positions = start + tl.arange(0, N)
        seen = positions < end
        rows = tl.load(table + line + positions, mask=seen, other=0).to(tl.int64)
        keys_at = rows[:, None] * (2 * GROUPS * HEAD) + group * HEAD + numbers[None, :]
        row_mask = seen[:, None] & is_number[None, :]
        keys = tl.load(pool + keys_at, mask=row_mask, other=0.0).to(PRECISE)
        scores = tl.sum(query[:, None, :] * keys[None, :, :], axis=2)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        kept = tl.exp(best - higher)
        weights = tl.exp(scores - higher[:, None])
        values_at = keys_at + GROUPS * HEAD
        values = tl.load(pool + values_at, mask=row_mask, other=0.0).to(PRECISE)
        fresh = tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
        summed = summed * kept[:, None] + fresh
        total = total * kept + tl.sum(weights, axis=1)
        best = higher

    place = (token * GROUPS * PER_GROUP + heads) * PARTS + part
    out_at = out + place[:, None] * HEAD + numbers[None, :]
    if PARTS == 1:
        summed = summed / total[:, None]
    else:
        tl.store(sums + place * 2, best, mask=is_head)
        tl.store(sums + place * 2 + 1, total, mask=is_head)
    tl.store(out_at, summed.to(out.dtype.element_ty), mask=query_mask)


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(
    parts: tl.tensor,
    sums: tl.tensor,
    out: tl.tensor,
    HEAD: tl.constexpr,
    E: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """One query token and head: the mean over its parts, each by its share of the softmax.

    A part without positions has maximum -inf and sum 0, so it counts for nothing.
    """
    query = tl.program_id(0).to(tl.int64)
    numbers = tl.arange(0, E)
    is_number = numbers < HEAD
    places = query * PARTS + tl.arange(0, PARTS)
    best = tl.load(sums + places * 2)
    total = tl.load(sums + places * 2 + 1)
    shares = tl.exp(best - tl.max(best, axis=0))
    summed_at = parts + places[:, None] * HEAD + numbers[None, :]
    summed = tl.load(summed_at, mask=is_number[None, :], other=0.0)
    mean = tl.sum(shares[:, None] * summed, axis=0) / tl.sum(shares * total, axis=0)
    tl.store(out + query * HEAD + numbers, mean.to(out.dtype.element_ty), mask=is_number)


IS_INTERPRETED = isinstance(_attend_part, InterpretedFunction)
"""Whether these kernels run in Triton's interpreter, on any device: for tests.

That is so where ``TRITON_INTERPRET`` was 1 when triton was first imported.
"""


def attend_rows(
    q_THE: Tensor,
    pool: Tensor,
    table: Tensor,
    reads_T2: Tensor,
    parts: int = 1,
) -> Tensor:
    """Attention outputs ``[T, H, E]`` of single tokens, each over its own table line.

    ``reads_T2`` (int64) says where: token t reads the line that starts at entry ``reads_T2[t, 0]``
    of ``table`` (int32, flat or not) up to position ``reads_T2[t, 1]``; its entries are rows of
    ``pool`` ``[rows, 2, G, E]``, keys then values. ``parts`` is a power of two.
    """
    tokens, heads, head_dim = q_THE.shape
    groups = pool.shape[2]
    if q_THE.stride(2) != 1:
        q_THE = q_THE.contiguous()
    precise = torch.promote_types(q_THE.dtype, torch.float32)
    m, e = (triton.next_power_of_2(size) for size in (heads // groups, head_dim))
    out = q_THE.new_empty((tokens, heads, head_dim))
    parted, sums = out, out
    if parts > 1:
        parted = out.new_empty((tokens, heads, parts, head_dim), dtype=precise)
        sums = out.new_empty((tokens, heads, parts, 2), dtype=precise)
    _attend_part[tokens, groups, parts](
        q_THE,
        pool,
        table,
        reads_T2,
        parted,
        sums,
        q_THE.stride(0),
        q_THE.stride(1),
        GROUPS=groups,
        PER_GROUP=heads // groups,
        HEAD=head_dim,
        M=m,
        E=e,
        N=max(SMALLEST_BLOCK, min(LARGEST_BLOCK, BLOCK_NUMBERS // (m * e))),
        PARTS=parts,
        PRECISE=tl.float64 if precise == torch.float64 else tl.float32,
    )
    if parts > 1:
        _join_parts[(tokens * heads,)](parted, sums, out, HEAD=head_dim, E=e, PARTS=parts)
    return out
