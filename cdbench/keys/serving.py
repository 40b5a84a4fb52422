"""How an engine runs, how tokens are chosen, how often and against which limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from cdbench.errors import UsageError
from cdbench.keys.section import (
    MOST_BLOCKS,
    MOST_RESIDENTS,
    MOST_TOKENS,
    Rows,
    Seconds,
    Section,
    Seed,
    Tokens,
)


# A derived default is asked for even where what it derives from was refused: `data` lacks it then.
def _default_width(data: Mapping[str, Any]) -> int:
    return int(data.get("max_residents", 1))


def _default_min_free(data: Mapping[str, Any]) -> int:
    return max(1, min(int(data.get("width", 1)) // 8, int(data.get("max_residents", 1))))


class EngineConfig(Section):
    """Sizes of launches, the same in every mode."""

    max_residents: Rows = Field(128, description="Most requests that hold KV at once")
    width: Rows = Field(
        default_factory=_default_width,
        description="Most decode rows of one launch (default: max_residents)",
    )
    coda_min_rows: int | Literal["auto"] = Field(
        1,
        description="Exited tokens that a coda launch waits for, in rows; auto chooses from the "
        "stage curves and the exits of the run (needs stages)",
    )
    min_free_residents: Rows = Field(
        default_factory=_default_min_free,
        description="Free residents that a prefill waits for (default: width/8, at least 1)",
    )
    prefill_tokens: Tokens = Field(512, description="Most prompt tokens of one prefill launch")
    max_itl_s: Seconds | None = Field(
        None,
        description="Longest gap between tokens that prompts may cause, in seconds; null: prompts "
        "go first",
    )
    ride: bool = Field(
        False, description="Let prompt chunks share core launches with decode rows, in every mode"
    )
    graphs: bool = Field(
        False,
        description="Capture decode launches, before anything is timed: CUDA graphs on a GPU, on a "
        "CPU a rehearsal that gains nothing",
    )
    compile: bool = Field(
        False, description="Compile the stages with torch.compile, before anything runs"
    )
    attention: Literal["auto", "sdpa", "triton", "varlen", "flashinfer"] = Field(
        "auto",
        description="Attention backend: sdpa (any device), triton (on a GPU), or auto: triton on a "
        "GPU where it is installed, else sdpa",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        rows = self.coda_min_rows
        if isinstance(rows, int) and not 1 <= rows <= MOST_RESIDENTS:
            raise UsageError(
                f"engine.coda_min_rows: {rows} is out of range; give 1 to {MOST_RESIDENTS:,} rows, "
                "or auto"
            )
        if self.width > self.max_residents:
            raise UsageError(
                f"engine.width: {self.width} is above max_residents {self.max_residents}, the most "
                "rows that a launch can have; lower it"
            )
        if self.min_free_residents > self.max_residents:
            raise UsageError(
                f"engine.min_free_residents: {self.min_free_residents} is above max_residents "
                f"{self.max_residents}, so no prompt would start; lower it"
            )
        return self


class SamplingConfig(Section):
    """How the next token is chosen, per request."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy; above, the softmax temperature")
    top_k: int = Field(
        0, ge=0, le=MOST_TOKENS, description="Keep the k likeliest tokens; 0 keeps all"
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the likeliest tokens up to this mass")
    seed: Seed = Field(0, description="Seed of the counter-based random stream")


class RepeatsConfig(Section):
    """How often the timed part is repeated."""

    blocks: int = Field(
        6,
        ge=1,
        le=MOST_BLOCKS,
        description="Palindromic blocks, until the first look where repeats.interval is set; an "
        "interval needs at least 6",
    )
    max_seconds: Seconds | None = Field(
        None, description="Start no further block after this many seconds; null: no limit"
    )
    interval: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Add blocks, at looks after 1, 2 and 4 times as many, until the interval of "
        "cdb over static is this narrow: half its width as a share, such as 0.02",
    )


class SloConfig(Section):
    """Latency targets, for goodput."""

    ttft_s: Seconds | None = Field(None, description="Longest time to first token, in seconds")
    tpot_s: Seconds | None = Field(None, description="Longest time per later token, in seconds")
    e2e_s: Seconds | None = Field(None, description="Longest time per request, in seconds")
