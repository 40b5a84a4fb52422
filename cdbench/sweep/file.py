"""A sweep file: a base configuration and what varies around it.

    name: exits
    base: {model: demo-ouro, modes: [static, cdb]}
    grid: {exit: [none, cdf@0.5, cdf@0.9], engine.max_residents: [16, 64]}
    link: [{dtype: float32, kv.layout: shared}, {dtype: bfloat16, kv.layout: per-loop}]
    include: [{exit: cdf@0.99}]
    exclude: [{exit: none, engine.max_residents: 16}]

``grid`` is a product of lists; ``link`` lists mappings that vary together (or several such lists,
one more factor each); ``include`` adds single cells; ``exclude`` drops those of the product that
match a pattern in every key, a list in a pattern meaning any of its values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from cdbench import resources
from cdbench.config import Tree, parse_yaml, read_tree
from cdbench.errors import UsageError

Verb = Literal["run", "stages"]
NOT_OF_STAGES = ("modes", "dense", "work", "equal", "stages", "repeats", "slo", "price_per_hour")
"""Keys and sections that decide what runs do, and nothing of a launch."""
FORMS = {
    "name": "a name of letters, digits, dots and hyphens",
    "description": "a text",
    "verb": "run or stages",
    "seed": "a whole number from 0",
    "rounds": "a whole number from 1",
    "base": "a mapping of keys, or the name of a configuration",
    "grid": "a list for each key: {KEY: [VALUE, …]}",
    "link": "a list of mappings: [{KEY: VALUE, …}, …]",
    "include": "a list of mappings: [{KEY: VALUE, …}, …]",
    "exclude": "a list of mappings: [{KEY: VALUE, …}, …]",
    "show": "a list of columns: [MODE.METRIC, …]",
}
"""How the value of each key is written."""
Changes = dict[str, Any]
"""Dotted configuration keys (or whole sections) and the values one cell gives them."""


def _one_group(value: Any) -> Any:
    """``link`` with a single group may leave the outer list out."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return [value]
    return value


def _mapping(value: Any) -> Any:
    return {} if value is None else value


def _listed(value: Any) -> Any:
    return [] if value is None else value


Groups = Annotated[tuple[tuple[Changes, ...], ...], BeforeValidator(_one_group)]


class SweepFile(BaseModel):
    """The keys of a sweep file. Raises pydantic's ValidationError or UsageError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$", description="Name of the sweep directory")
    description: str | None = Field(None, description="What the sweep shows")
    verb: Verb = Field("run", description="run (as `cdbench run`) or stages (its stage curves)")
    seed: int = Field(0, ge=0, description="Seed of the order in which cells run")
    rounds: int = Field(
        1,
        ge=1,
        description="How often the whole set of cells runs, in a new order each time; "
        "repeats.blocks counts the blocks of one round",
    )
    base: str | Tree = Field(
        default_factory=dict, description="The configuration around which cells vary, or its name"
    )
    grid: dict[str, list[Any]] = Field(default_factory=dict, description="Key → its values")
    link: Groups = Field((), description="Lists of mappings whose keys vary together")
    include: tuple[Changes, ...] = Field((), description="Cells beside the product")
    exclude: tuple[Changes, ...] = Field((), description="Patterns of cells to leave out")
    show: tuple[str, ...] = Field(
        (),
        description="Columns of the table: MODE.METRIC, MODE.METRIC.p99, MODE/OVER[.decode], "
        "MODE.accuracy, MODE.realised.BOUND; none: a choice that suits the modes",
    )

    @field_validator("base", "grid", mode="before")
    @classmethod
    def _no_mapping(cls, value: Any) -> Any:
        return _mapping(value)

    @field_validator("link", "include", "exclude", "show", mode="before")
    @classmethod
    def _no_list(cls, value: Any, info: ValidationInfo) -> Any:
        return _listed(value)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key, values in self.grid.items():
            if not values:
                raise UsageError(f"grid.{key}: no values; list at least one")
        for group in self.link:
            if not group:
                raise UsageError("link: an empty list; give at least one mapping")
            if any(set(item) != set(group[0]) for item in group):
                raise UsageError(
                    "link: mappings of one list must have the same keys; write every key in each"
                )
        factors = [*self.grid, *(key for group in self.link for key in group[0])]
        for key in factors:
            if factors.count(key) > 1:
                raise UsageError(f"{key}: varied twice; keep it in grid or in one list of link")
        for key in self.varied:
            self._check_varied(key)
        return self

    def _check_varied(self, key: str) -> None:
        """A key that no cell heeds would make cells that differ in nothing but their names."""
        if key == "out":
            raise UsageError("out: every cell has a directory of its own; drop it and use --out")
        if self.verb == "stages" and key.partition(".")[0] in NOT_OF_STAGES:
            raise UsageError(
                f"{key}: no stage curve depends on it; drop it, or use verb run, not stages"
            )

    @property
    def varied(self) -> tuple[str, ...]:
        """Every key that some cell sets, in the order of the file."""
        mappings = [self.grid, *(item for group in self.link for item in group), *self.include]
        return tuple(dict.fromkeys(key for mapping in mappings for key in mapping))


def read_sweep(name: str) -> SweepFile:
    """A sweep by its file, or by the name of a shipped one (``paper/exit-sweep.cpu``).

    ``base`` may name a configuration as typed, beside the sweep file, or a shipped one; it comes
    back as a mapping. ``name`` defaults to the file's own. Raises UsageError, one line.
    """
    path = find_sweep(name)
    tree = read_tree(path)
    if not tree:
        raise UsageError(f"{path}: is empty, so nothing varies; write base and grid")
    tree.setdefault("name", path.name.removesuffix(".yaml"))
    return parse_sweep({**tree, "base": _base(tree.get("base"), path)}, str(path))


def parse_sweep(tree: Tree, source: str) -> SweepFile:
    """Validate a sweep given as nested mappings; UsageError names ``source`` and the key."""
    try:
        return SweepFile.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        # Beyond a key of the file's own, pydantic names what it tried of a union.
        key = ".".join(str(part) for part in first["loc"] if part not in ("str", "[key]"))
        if first["type"] == "extra_forbidden":
            known = ", ".join(SweepFile.model_fields)
            raise UsageError(
                f"{source}: {key}: is no key of a sweep; its keys are {known}"
            ) from None
        form = FORMS[str(first["loc"][0])] if first["loc"] else "a mapping"
        given = textwrap.shorten(repr(first["input"]), 60, placeholder="…")
        raise UsageError(f"{source}: {key}: {given} is refused; write {form}") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def find_sweep(name: str) -> Path:
    """The file of a sweep. UsageError names the nearest shipped one."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = resources.data_dir("configs") / f"{name.removesuffix('.yaml')}.yaml"
    if name in sweep_names() and shipped.is_file():
        return shipped
    raise UsageError(f"{name}: no such sweep; {resources.nearest_hint(name, sweep_names())}")


def sweep_names() -> tuple[str, ...]:
    """The shipped sweeps, sorted: ``paper/NAME`` for each file in ``configs/paper``."""
    root = resources.data_dir("configs")
    return tuple(sorted(f"paper/{path.stem}" for path in root.glob("paper/*.yaml")))


def _base(base: Any, sweep: Path) -> Any:
    """The base as a mapping, where it is given as a name."""
    if not isinstance(base, str):
        return base
    beside = sweep.parent / base
    return read_tree(beside if not Path(base).exists() and beside.is_file() else base)


def set_values(overrides: Sequence[str], varied: Sequence[str]) -> Changes:
    """The texts of ``--set`` for every cell; UsageError where the sweep itself varies the key."""
    values: Changes = {}
    for text in overrides:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UsageError(f"--set {text!r}: no key=value; write --set workload.requests=8")
        for other in varied:
            if other == key or other.startswith(f"{key}.") or key.startswith(f"{other}."):
                raise UsageError(
                    f"--set {key}: the sweep varies {other}; change the sweep file instead"
                )
        values[key] = parse_yaml(value, f"--set {text!r}")
    return values
