"""``cdbench generate --json``: one document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, Measure


class GeneratedRequest(BaseModel):
    """One continuation. A refused request has its ``error`` and no tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int = Field(description="place in the input, from 0")
    prompt_tokens: int
    tokens: list[int]
    depths: list[int] = Field(description="executed depths; entry 0 is the first token (R)")
    logprobs: list[Measure] = Field(
        description="of the tokens listed, the raw model's, natural log"
    )
    text: str | None = Field(description="null without a tokenizer")
    finish_reason: Literal["stop", "length", "error", "cancelled"]
    error: str | None


class GenerateDocument(BaseModel):
    """``cdbench generate --json``: every request, in input order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = SCHEMA_VERSION
    model: str
    config: dict[str, JsonValue]
    requests: list[GeneratedRequest]
