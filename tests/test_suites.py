"""The shipped suites: they load by name, and ask what lm-eval knows."""

from __future__ import annotations

import pytest

from cdbench import resources
from cdbench.config import load_config
from cdbench.evals.catalogue import catalogue

SUITES = [name for name in resources.config_names() if name.startswith("suites/")]


def test_the_papers_suites_are_there() -> None:
    assert SUITES == [
        "suites/huginn",
        "suites/huginn-gsm8k",
        "suites/ouro-1.4b",
        "suites/ouro-2.6b",
    ]


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_asks_all_of_what_lm_eval_knows_at_several_depths(name: str) -> None:
    config = load_config(name)
    assert config.work == ("live",)
    assert config.limit is None, "the published figures are of whole tasks"
    assert config.tasks
    assert set(config.tasks) <= catalogue().defined
    depths = [mode.depth for mode in config.resolved_modes if mode.kind == "static"]
    assert None in depths
    assert len(depths) > 3, "accuracy by loops"
    assert any(mode.kind == "cdb" for mode in config.resolved_modes)
