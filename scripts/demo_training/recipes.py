"""How each model is trained: its stages, who leaves in which batch, and what is asked of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cdbench.models.base import StagedModel
from scripts.demo_training.leaving import by_rule, log_uniform, once_confident
from scripts.demo_training.losses import Asked
from scripts.demo_training.trunk import Plan, Planner

#: The share of a stage from which every other batch has exits in force.
FIRST_EXITS = 0.25
#: The share from which the real rules decide.
FIRST_RULES = 0.6
#: The share from which ``demo-ut`` reads out its halting mean and halts.
FIRST_HALTING = 0.4
GUIDE, PONDER = 0.1, 0.01
HALT_AT = 0.99
#: Thresholds drawn while a rule decides.
LATENT_DIFFERENCE = (0.03, 0.4)
KL = (1e-4, 3e-2)


@dataclass(frozen=True)
class Recipe:
    """The card's rule before it is chosen on validation documents, and the rules trained with."""

    exit: str
    has_gate: bool = False


RECIPES = {
    "demo-ouro": Recipe("cdf@0.99", has_gate=True),
    "demo-dense": Recipe("none"),
    "demo-dense-small": Recipe("none"),
    "demo-huginn": Recipe("latent-diff@0.1"),
    "demo-ut": Recipe(f"act@{HALT_AT}"),
}


def planner(name: str, model: StagedModel) -> Planner:
    """What each batch of a model's main stage does."""
    if name == "demo-ouro":
        return _ouro()
    if name == "demo-huginn":
        return _huginn(model)
    if name == "demo-ut":
        return _universal(model)
    return lambda step, share, rng: Plan(Asked())


def _ouro() -> Planner:
    asked = Asked(exit=0.3)

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        with_exits = share >= FIRST_EXITS and step % 2 == 1
        return Plan(asked, once_confident(rng) if with_exits else None)

    return plan


def under_the_gate(model: StagedModel) -> Planner:
    """``demo-ouro``'s last batches: its own gate decides, at thresholds of 0.5 to 0.999.

    Every fourth batch stays at full depth, so that prompts and rule ``none`` keep their accuracy.
    """

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        # Evenly in the odds of staying.
        threshold = 1 - log_uniform(rng, 0.001, 0.5)
        return Plan(Asked(), by_rule(model, "cdf", threshold) if step % 4 else None)

    return plan


def _huginn(model: StagedModel) -> Planner:
    asked = Asked(settle=1.0)
    rules = (("latent-diff", LATENT_DIFFERENCE), ("kl", KL))

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        if share < FIRST_RULES:
            with_exits = share >= FIRST_EXITS and step % 2 == 1
            return Plan(asked, once_confident(rng) if with_exits else None)
        if step % 2 == 0:
            return Plan(asked)
        rule, thresholds = rules[step % 4 == 1]
        return Plan(asked, by_rule(model, rule, log_uniform(rng, *thresholds)))

    return plan


def polishing(name: str, model: StagedModel) -> Planner:
    """The second stage of the two that have one: what exits cost counts for more.

    ``demo-huginn``'s first stage asks so much of every loop that the first two do all the work, and
    the words they get wrong stay wrong; ``demo-ut``'s halts words a loop too soon.
    """
    return _huginn_polish(model) if name == "demo-huginn" else _universal_polish(model)


def _huginn_polish(model: StagedModel) -> Planner:
    asked = Asked(loop=0.05, settle=0.3)
    rules = (("latent-diff", LATENT_DIFFERENCE), ("kl", KL))

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        if step % 2 == 0:
            return Plan(asked)
        rule, thresholds = rules[step % 4 == 1]
        return Plan(asked, by_rule(model, rule, log_uniform(rng, *thresholds)))

    return plan


def _universal_polish(model: StagedModel) -> Planner:
    asked = Asked(loop=0.1, guide=GUIDE, halting=True, ponder=0.2 * PONDER, halt_at=HALT_AT)

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        return Plan(asked, by_rule(model, "act", HALT_AT) if step % 4 else None)

    return plan


def _universal(model: StagedModel) -> Planner:
    plain = Asked(guide=GUIDE)
    halting = Asked(guide=GUIDE, halting=True, ponder=PONDER, halt_at=HALT_AT)

    def plan(step: int, share: float, rng: random.Random) -> Plan:
        if share < FIRST_HALTING:
            with_exits = share >= FIRST_EXITS and step % 2 == 1
            return Plan(plain, once_confident(rng) if with_exits else None)
        return Plan(halting, by_rule(model, "act", HALT_AT) if step % 2 else None)

    return plan
