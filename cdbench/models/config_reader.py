"""Typed look-ups in a model's ``config.json``, refusing what this code would compute wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdbench.errors import UsageError
from cdbench.models.base import ModelDims
from cdbench.models.layers import RopeScaling

CONFIG_NAME = "config.json"
ROPE_TABLES = ("rope_parameters", "rope_scaling")
"""The newer and the older key of the table that says how rotary frequencies are scaled."""
ABSENT_WINDOW = 4096
"""The window that ``transformers`` assumes where the key is not there (null is no window)."""


class ConfigReader:
    """Typed look-ups in a model configuration, refusing what this code would compute wrongly.

    ``prefix`` goes before keys in messages: a reader may be of a table within the file.
    """

    def __init__(self, config: dict[str, Any], model_type: str, prefix: str = "") -> None:
        self.config = config
        self.model_type = model_type
        self.prefix = prefix

    def whole_number(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.bad(key, f"is {value!r}, expected a whole number of at least {least}")
        return value

    def positive_int(self, key: str, default: int | None = None) -> int:
        return self.whole_number(key, default, least=1)

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.bad(key, f"is {value!r}, expected a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; absent or null is false."""
        value = self._value(key, False)
        if not isinstance(value, bool):
            raise self.bad(key, f"is {value!r}, expected true or false")
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """One of ``allowed``; absent or null is the first."""
        value = self._value(key, allowed[0])
        if value not in allowed:
            raise self.bad(key, f"is {value!r}; use one of {', '.join(allowed)}")
        return str(value)

    def require_choice(self, key: str, only: str) -> None:
        value = self.config.get(key, only)
        if value != only:
            raise self.bad(key, f"is {value!r}; only {only!r} is implemented")

    def heads(self) -> tuple[int, int, int]:
        """Query heads, key/value heads and head size, checked against one another."""
        heads = self.positive_int("num_attention_heads")
        kv_heads = self.positive_int("num_key_value_heads", heads)
        head_dim = self.positive_int("head_dim", self.positive_int("hidden_size") // heads or None)
        if heads % kv_heads:
            raise self.bad("num_key_value_heads", f"is {kv_heads}; it must divide {heads} heads")
        if head_dim % 2:
            raise self.bad("head_dim", f"is {head_dim}; rotary positions need an even size")
        return heads, kv_heads, head_dim

    def decoder_dims(
        self,
        max_loops: int,
        has_exit_gate: bool = False,
        layers: tuple[int, int, int] | None = None,
        has_injection: bool = False,
    ) -> ModelDims:
        """Sizes of a decoder under the key names of the Llama family.

        ``layers`` are those of prelude, core and coda; without them all are core.
        """
        heads, kv_heads, head_dim = self.heads()
        prelude, core, coda = layers or (0, self.positive_int("num_hidden_layers"), 0)
        return ModelDims(
            model_type=self.model_type,
            hidden_size=self.positive_int("hidden_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            prelude_layers=prelude,
            core_layers=core,
            coda_layers=coda,
            max_loops=max_loops,
            vocab_size=self.positive_int("vocab_size"),
            max_positions=self.positive_int("max_position_embeddings"),
            has_exit_gate=has_exit_gate,
            has_injection=has_injection,
        )

    def rope_theta(self, default: float | None = None) -> float:
        """The rotary base, from the newer ``rope_parameters`` table or the old flat key."""
        for key in ROPE_TABLES:
            table = self._rope_table(key)
            if table is not None and "rope_theta" in table.config:
                return table.positive_float("rope_theta")
        return self.positive_float("rope_theta", default)

    def rope_scaling(self) -> RopeScaling | None:
        """How rotary frequencies are scaled, under the old or the newer key; None where plain."""
        tables = [table for key in ROPE_TABLES if (table := self._rope_table(key)) is not None]
        for reader in (self, *tables):
            if reader.config.get("partial_rotary_factor") not in (None, 1):
                raise reader.bad("partial_rotary_factor", "is set; only whole heads are rotated")
        found = {self._scaling(table) for table in tables}
        if len(found) > 1:
            raise self.bad("rope_scaling", "contradicts `rope_parameters`; keep one of them")
        return found.pop() if found else None

    def require_plain_rope(self) -> None:
        scaling = self.rope_scaling()
        if scaling is not None:
            raise self.bad(
                "rope_scaling",
                f"asks for {scaling.kind!r} scaling; only plain rotary is implemented",
            )
        self.require_full_attention()

    def require_full_attention(self) -> None:
        """Raise UsageError where a sliding window would hide some position from another."""
        sliding = set(self.config.get("layer_types") or ()) - {"full_attention"}
        if sliding - {"sliding_attention"}:
            raise self.bad("layer_types", f"has {sorted(sliding)}; only full attention works")
        if not (sliding or self._window_is_on()):
            return
        absent = None if self.model_type == "looped_llama" else ABSENT_WINDOW
        window = self.config.get("sliding_window", absent)
        if window is not None and window < self.positive_int("max_position_embeddings"):
            raise self.bad("sliding_window", f"is {window}; only full attention is implemented")

    def _window_is_on(self) -> bool:
        """Whether ``sliding_window`` counts: Mistral has no switch, elsewhere it may be off."""
        if self.model_type == "mistral":
            return True
        unsaid = self.config.get("use_sliding_window") is None
        return self.model_type == "looped_llama" if unsaid else self.flag("use_sliding_window")

    def bad(self, key: str, why: str) -> UsageError:
        """The error that a key's value is wrong."""
        return UsageError(f"{CONFIG_NAME} ({self.model_type}): `{self.prefix}{key}` {why}")

    def _rope_table(self, key: str) -> ConfigReader | None:
        table = self.config.get(key)
        if not table:
            return None
        if not isinstance(table, dict):
            raise self.bad(key, f"is {table!r}, expected a table")
        if any(isinstance(value, dict) for value in table.values()):
            raise self.bad(key, "has a table per kind of layer; only one for all is implemented")
        return ConfigReader(table, self.model_type, f"{key}.")

    def _scaling(self, table: ConfigReader) -> RopeScaling | None:
        kind = table.config.get("rope_type", table.config.get("type", "default"))
        if kind == "default":
            return None
        if kind not in ("linear", "llama3"):
            key = table.prefix.rstrip(".")
            raise self.bad(key, f"asks for {kind!r} scaling; only linear and llama3 are known")
        factor = table.positive_float("factor")
        if kind == "linear":
            return RopeScaling("linear", factor)
        low = table.positive_float("low_freq_factor")
        high = table.positive_float("high_freq_factor")
        if high <= low:
            raise table.bad("high_freq_factor", f"is {high}; it must be above {low}")
        original = "original_max_position_embeddings"
        trained = table.positive_int(original, self.positive_int("max_position_embeddings"))
        return RopeScaling("llama3", factor, low, high, self.positive_int(original, trained))

    def _value(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.bad(key, "is missing")
        return value


def core_layers_only(config: dict[str, Any], prelude: int, core: int, coda: int) -> dict[str, Any]:
    """``with_layers`` of a family whose layers are all core, under the Llama family's key."""
    if prelude or coda:
        raise UsageError(
            f"layers: '{prelude}-{core}-{coda}': {config.get('model_type')} has core layers only; "
            f"write 0-{core}-0"
        )
    return {**config, "num_hidden_layers": core}


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed ``config.json`` of a checkpoint directory; UsageError names what is wrong."""
    config = read_json(directory / CONFIG_NAME)
    if config is None:
        raise UsageError(f"{directory}: no {CONFIG_NAME}; give the directory of a checkpoint")
    return config


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None where there is no file; UsageError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}; expected a JSON object") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: holds no JSON object; expected one")
    return value
