"""The base of every section: frozen, unknown keys and nonsense refused."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationInfo,
    field_validator,
)


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
