"""The base of every section: frozen, unknown keys and nonsense refused."""

from __future__ import annotations

import os
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

# The largest values of keys. All lie far beyond what can be measured, and short of what a 64-bit
# number, an allocation or a sum of them fails on; what a model or a machine allows is checked where
# it is known.
MOST_REQUESTS = 1_000_000
MOST_BLOCKS = 1_000_000
MOST_RESIDENTS = 65_536
MOST_TOKENS = 1_000_000_000
MOST_BYTES = 2**60
LARGEST_SEED = 2**63 - 1
MOST_SECONDS = 1e9
HIGHEST_PRICE = 1e12
LONGEST_NAME_BYTES = 255
LONGEST_PATH_BYTES = 4095
"""What file systems hold of a name, and of a whole path."""


def nameable(value: str) -> str:
    """The text, where a file could bear it as its path. Raises ValueError otherwise."""
    longest = max(len(os.fsencode(part)) for part in value.split("/"))
    if longest > LONGEST_NAME_BYTES:
        raise ValueError(f"no file name has more than {LONGEST_NAME_BYTES} bytes")
    if len(os.fsencode(value)) > LONGEST_PATH_BYTES:
        raise ValueError(f"no path has more than {LONGEST_PATH_BYTES} bytes")
    if "\0" in value:
        raise ValueError("no file name has a NUL character")
    return value


FileName = Annotated[str, Field(min_length=1), AfterValidator(nameable)]
"""A text that may be the path of a file or a directory."""

Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Rows = Annotated[int, Field(ge=1, le=MOST_RESIDENTS)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Bytes = Annotated[int, Field(ge=1, le=MOST_BYTES)]
Seconds = Annotated[float, Field(gt=0, le=MOST_SECONDS)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_number(cls, value: Any, info: ValidationInfo) -> Any:
        # Python counts true as 1; a configuration that says so means something else.
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and bool not in (field.annotation, *get_args(field.annotation)):
            raise ValueError("true and false mean nothing here")
        return value


def value_at(config: BaseModel, key: str) -> Any:
    """The value of a key, by its dotted path."""
    for part in key.split("."):
        config = getattr(config, part)
    return config
