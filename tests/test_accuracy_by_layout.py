"""What another schedule changed by rounding, counted by hand, and the record of a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from cdbench.bench.live import LivePass
from cdbench.schema import SampleRecord
from scripts.accuracy_by_layout import changes, main
from tests.test_accuracy import Passed, answer, sample


def passed(*samples: SampleRecord) -> LivePass:
    return cast(LivePass, Passed(samples))


def test_changes_are_counted_up_to_the_first_other_token() -> None:
    wide = passed(
        sample("cdb", 0, 1, answer([1, 2, 3], [4, 2, 2])),
        sample("cdb", 1, 1, answer([1, 2, 3], [4, 2, 2])),
        sample("cdb", 2, 0, answer([1, 2], [4, 1])),
    )
    narrow = passed(
        sample("cdb", 2, 0, answer([1, 2], [4, 1])),
        sample("cdb", 1, 0, answer([1, 9, 3, 4], [4, 2, 1, 1])),
        sample("cdb", 0, 1, answer([1, 2, 3], [4, 2, 1])),
    )
    assert changes(wide, narrow) == {
        "questions": 3,
        "texts": 3,
        "tokens": 8,
        "changed_texts": 1,
        "changed_tokens": 3,
        "changed_depths": 1,
        "changed_answers": 1,
    }
    assert changes(wide, wide)["changed_texts"] == 0


@pytest.mark.slow
def test_the_record_has_every_layout_rule_and_depth(tmp_path: Path) -> None:
    out = tmp_path / "by-layout.json"
    layouts = ["--layouts", "per-loop", "shared"]
    main(["--documents", "1", *layouts, "--thresholds", "0.6", "--out", str(out)])
    record = json.loads(out.read_text())
    labels = ["static", "static@1", "static@2", "static@3", "cdf@0.99", "cdf@0.6"]
    assert record["questions"]["count"] == 7
    for layout in ("per-loop", "shared"):
        points = record["layouts"][layout]
        assert list(points) == labels
        assert all(point["accuracy"]["n"] == 7 for point in points.values())
        assert points["static"]["over_static"] is None
        assert points["static@2"]["mean_depth"] == 2
        assert record["width_1"][layout]["questions"] == 7
    assert record["layouts"]["per-loop"]["static"]["over_per_loop"] is None
    assert record["layouts"]["shared"]["static"]["over_per_loop"]["over"] == "per-loop"
