"""``record.json``: what ``cdbench record`` writes, beside the signals in ``signals.npz``.

``signals.npz`` holds two arrays. ``signals`` ``[later tokens, R]``, float32 (float64 for a float64
run), has one line per later token and one column per loop: the exit rule's signal after that loop,
of the token itself up to its exit and of its ghost beyond. ``offsets`` ``[requests + 1]``, int64,
says which lines are whose: request i (from 0) has lines ``offsets[i]`` to ``offsets[i + 1] - 1``,
and line ``offsets[i] + j`` belongs to its token ``j + 1``. A NaN is what the rule computed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cdbench.schema.base import SCHEMA_VERSION, Measure, Record
from cdbench.schema.machine import Manifest, ModelIdentity
from cdbench.schema.result import ExitSettings
from cdbench.schema.workload import WorkloadRecord

RECORD_FILE = "record.json"
SIGNALS_FILE = "signals.npz"


class SignalsFile(Record):
    """The arrays beside the document, and how to know that they are the right ones."""

    file: str = Field(SIGNALS_FILE, description="in the directory of the document")
    sha256: str
    dtype: Literal["float32", "float64"]
    tokens: int = Field(ge=0, description="lines: later tokens of all requests")
    loops: int = Field(ge=1, description="columns: R")


class AgreementRecord(Record):
    """Depths derived for a threshold, against a live run at it with the recorded tokens forced.

    They can differ because the live run's earlier tokens left at other loops, and so left other
    keys and values behind.
    """

    threshold: float
    tokens: int = Field(description="later tokens compared")
    equal: Measure = Field(description="share of them whose depth is the same")
    mean_difference: Measure = Field(description="mean of |derived - live|, in loops")
    mean_depth_derived: Measure
    mean_depth_live: Measure


class Recording(Record):
    """``record.json``: one live run at one threshold, to be replayed at it or at others."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["recording"] = "recording"
    marks: list[str] = Field(
        default_factory=list, description="what in it is not the model's own doing"
    )
    notes: list[str] = Field(
        default_factory=list, description="what a person may not expect of the run or its workload"
    )
    model: ModelIdentity
    weight_seed: int | None = Field(None, description="set where the weights are random")
    layers: str | None = Field(None, description="layers in place of the model's own, as P-C-K")
    exit: ExitSettings = Field(description="the rule that ran, with its threshold q")
    max_loops: int = Field(ge=1, description="R")
    kv_layout: str
    dtype: str
    device: str = Field(description="cpu or cuda")
    workload_hash: str = Field(
        description="sha256 over prompts, tokens, executed depths and arrivals, all at once"
    )
    source: str = Field(description="workload.source of the run")
    signals: SignalsFile
    agreement: list[AgreementRecord] = Field(
        default_factory=list, description="depths derived for other thresholds, against live runs"
    )
    config: dict[str, JsonValue] = Field(description="the resolved configuration")
    manifest: Manifest
    content_sha256: str | None = Field(
        None,
        description="over all else in the document, as compact JSON with sorted keys; null in one "
        "that was written without it",
    )
    requests: list[WorkloadRecord] = Field(
        description="prompts, tokens and depths; entry 0 of the depths is the first token"
    )
