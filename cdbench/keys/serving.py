"""How an engine runs, how tokens are chosen, how often and against which limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import (
    Field,
    model_validator,
)

from cdbench.errors import UsageError
from cdbench.keys.section import Section


# A derived default is asked for even where what it derives from was refused: `data` lacks it then.
def _default_width(data: Mapping[str, Any]) -> int:
    return int(data.get("max_residents", 1))


def _default_min_free(data: Mapping[str, Any]) -> int:
    return max(1, min(int(data.get("width", 1)) // 8, int(data.get("max_residents", 1))))


class EngineConfig(Section):
    """Sizes of launches, the same in every mode."""

    max_residents: int = Field(128, ge=1, description="Most requests that hold KV at once")
    width: int = Field(
        default_factory=_default_width,
        ge=1,
        description="Most decode rows of one launch (default: max_residents)",
    )
    coda_min_rows: int | Literal["auto"] = Field(
        1,
        description="Exited tokens that a coda launch waits for, in rows; or auto",
    )
    min_free_residents: int = Field(
        default_factory=_default_min_free,
        ge=1,
        description="Free residents that a prefill waits for (default: width/8)",
    )
    prefill_tokens: int = Field(512, ge=1, description="Most prompt tokens of one prefill launch")
    max_itl_s: float | None = Field(
        None, gt=0, description="Longest gap between tokens that a prefill may cause, in seconds"
    )
    graphs: bool = Field(False, description="Capture launches as CUDA graphs")
    compile: bool = Field(False, description="Compile the stages with torch.compile")
    attention: Literal["auto", "sdpa", "triton", "varlen", "flashinfer"] = Field(
        "auto", description="Attention backend: auto or sdpa"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.coda_min_rows, int) and self.coda_min_rows < 1:
            raise UsageError("engine.coda_min_rows: below 1; give a number of rows or auto")
        if self.min_free_residents > self.max_residents:
            raise UsageError(
                f"engine.min_free_residents: {self.min_free_residents} is above max_residents "
                f"{self.max_residents}, so no prompt would start; lower it"
            )
        return self


class SamplingConfig(Section):
    """How the next token is chosen, per request."""

    temperature: float = Field(0.0, ge=0, description="0 is greedy; above, the softmax temperature")
    top_k: int = Field(0, ge=0, description="Keep the k likeliest tokens; 0 keeps all")
    top_p: float = Field(1.0, gt=0, le=1, description="Keep the likeliest tokens up to this mass")
    seed: int = Field(0, ge=0, description="Seed of the counter-based random stream")


class RepeatsConfig(Section):
    """How often the timed part is repeated."""

    blocks: int = Field(6, ge=1, description="Palindromic blocks; an interval needs at least 6")
    max_seconds: float | None = Field(
        None, gt=0, description="Start no further block after this many seconds; null: no limit"
    )
    interval: float | None = Field(
        None,
        gt=0,
        description="Add blocks, at looks after 1, 2 and 4 times as many, until the interval of "
        "cdb over static is this narrow: half its width as a share, such as 0.02",
    )


class SloConfig(Section):
    """Latency targets, for goodput."""

    ttft_s: float | None = Field(None, gt=0, description="Longest time to first token, in seconds")
    tpot_s: float | None = Field(None, gt=0, description="Longest time per later token, in seconds")
    e2e_s: float | None = Field(None, gt=0, description="Longest time per request, in seconds")
