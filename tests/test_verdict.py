"""The plain words: what they say follows from intervals and cannot flatter."""

from __future__ import annotations

import pytest

from cdbench.metrics.trace import Arrivals
from cdbench.render.verdict import sentences
from cdbench.schema import (
    Accuracy,
    BoundRecord,
    Comparison,
    CpuInfo,
    DeviceInfo,
    ExitSettings,
    IntervalRecord,
    Manifest,
    ModeAccuracy,
    ModeResult,
    PairedRecord,
    Result,
    Validity,
    Workload,
)

FASTER = (1.5, 1.45, 1.55)
SLOWER = (0.8, 0.75, 0.85)
UNCLEAR = (1.01, 0.97, 1.05)
NO_INTERVAL = (1.5, None, None)
Ratio = tuple[float, float | None, float | None]

MANIFEST = Manifest(
    started_utc="2026-01-01T00:00:00Z",
    command=["cdbench", "run"],
    cdbench_version=None,
    git=None,
    python="3.11",
    packages={},
    platform="test",
    cpu=CpuInfo(
        model=None,
        logical_cores=2,
        physical_cores=2,
        affinity=None,
        quota_cores=None,
        governor=None,
    ),
    ram_bytes=None,
    load_average=None,
    torch_threads=1,
    torch_interop_threads=1,
    device=DeviceInfo(kind="cpu"),
    env={},
    models=[],
)


def interval(ratio: Ratio, n: int = 6) -> IntervalRecord:
    return IntervalRecord(estimate=ratio[0], low=ratio[1], high=ratio[2], n=n)


def accuracy(rate: float, delta: float, verdict: str) -> ModeAccuracy:
    return ModeAccuracy(
        rate=interval((rate, None, None), 1000),
        paired=PairedRecord(
            over="static",
            n=1000,
            difference=interval((delta, delta - 0.004, delta + 0.004), 1000),
            lost=5,
            gained=2,
            mcnemar_p=0.5,
            delta=0.01,
            verdict=verdict,
        ),
    )


def make_result(
    speedups: dict[str, Ratio],
    *,
    cdb_verdict: str = "within",
    dense_delta: float = 0.0,
) -> Result:
    """A result in which ``cdb`` has these speed-ups over other modes."""
    labels = ["static", *(label for label in speedups if label != "static"), "cdb"]
    modes = {
        label: ModeResult(
            schedule="dense"
            if label.startswith("dense")
            else "cdb"
            if label == "cdb"
            else "static",
            model="demo",
            exit=ExitSettings(rule="cdf", threshold=0.5),
            max_loops=3 if label == "static@auto" else 4,
        )
        for label in labels
    }
    rates = {label: accuracy(0.95, 0.0, "within") for label in labels}
    rates["cdb"] = accuracy(0.95, -0.002, cdb_verdict)
    if "dense:d" in rates:
        rates["dense:d"] = accuracy(0.95 + dense_delta, dense_delta, "within")
    return Result(
        status="complete",
        validity=Validity(verdict="VALID"),
        manifest=MANIFEST,
        config={},
        workload=Workload(
            hash="0", source="demo", requests=1, prompt_tokens=1, arrivals=Arrivals.ALL_AT_ONCE
        ),
        modes=modes,
        comparisons=[
            Comparison(mode="cdb", over=over, scope="e2e", speedup=interval(ratio))
            for over, ratio in speedups.items()
        ],
        bounds={
            "cdb": {
                "flop_bound": BoundRecord(
                    value=1.7, scope="decode", realised=interval((0.93, 0.91, 0.95))
                )
            }
        },
        accuracy=Accuracy(baseline="static", modes=rates),
    )


def words(*args: object, **kwargs: object) -> str:
    return " ".join(sentences(make_result(*args, **kwargs)))  # type: ignore[arg-type]


def test_a_gain_is_stated_with_its_interval_accuracy_and_bound() -> None:
    said = words({"static": FASTER})
    assert "1.50× [1.45, 1.55] as fast as full-depth static" in said
    assert "95.0% of 1,000 questions" in said
    assert "not worse by more than 1 point" in said
    assert "worth 1.70×" in said
    assert "realised 93% [91, 95]" in said or "93.0% [91.0, 95.0]" in said


def test_losing_to_a_dense_model_is_said() -> None:
    said = words({"static": FASTER, "dense:d": SLOWER})
    assert "strongest baseline of like accuracy is dense:d" in said
    assert "does not beat an ordinary one" in said


def test_static_auto_making_adaptive_depth_pointless_is_said() -> None:
    for ratio in (SLOWER, UNCLEAR):
        said = words({"static": FASTER, "static@auto": ratio})
        assert "static@auto (3 loops for every token)" in said
        assert ("adaptive depth does not pay" in said) is (ratio is SLOWER)


def test_the_strongest_rival_is_the_headline_even_where_cdb_wins() -> None:
    said = words({"static": FASTER, "static@auto": (1.2, 1.15, 1.25)})
    assert "cdb did its work 1.20× [1.15, 1.25] as fast as that baseline" in said
    assert "does not pay" not in said


def test_a_dense_model_of_lower_accuracy_is_no_rival() -> None:
    assert "strongest baseline" not in words(
        {"static": FASTER, "dense:d": SLOWER}, dense_delta=-0.05
    )


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("worse", "worse by more than 1 point"), ("cannot tell", "too few questions to tell")],
)
def test_lost_accuracy_is_never_left_out(verdict: str, expected: str) -> None:
    assert expected in words({"static": FASTER}, cdb_verdict=verdict)


def test_a_difference_the_blocks_cannot_tell_is_no_gain() -> None:
    said = words({"static": UNCLEAR})
    assert "cannot tell from full-depth static's" in said


def test_too_few_blocks_are_named() -> None:
    assert "too few blocks for an interval" in words({"static": NO_INTERVAL})
