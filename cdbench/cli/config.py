"""``cdbench config check|show|schema``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdbench import config as run_config
from cdbench.cli import output
from cdbench.errors import UsageError
from cdbench.render.formats import for_encoding

verb = typer.Typer(rich_markup_mode=None)

ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or a shipped configuration by its name, such as ci."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key, as workload.seed=1 (`cdbench config schema`); may be repeated.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@verb.command()
def check(
    config: ConfigArgument = None, overrides: SetOption = None, as_json: JsonOption = False
) -> None:
    """Say whether a configuration's keys and values are valid.

    Models, tasks and other files that it names are looked for by the run itself.
    """
    what = config or "defaults"
    try:
        loaded = run_config.load_config(config, overrides or ())
        _check_rule(loaded)
    except UsageError as error:
        if as_json:
            output.print_json({"config": what, "valid": False, "error": str(error)})
        raise
    if as_json:
        output.print_json({"config": what, "valid": True, "error": None})
    else:
        print(f"{what}: valid")


@verb.command()
def show(
    config: ConfigArgument = None, overrides: SetOption = None, as_json: JsonOption = False
) -> None:
    """Print the whole configuration a run would use, defaults filled in."""
    loaded = run_config.load_config(config, overrides or ())
    if as_json:
        output.print_json(loaded.model_dump(mode="json"))
    else:
        print(for_encoding(run_config.to_yaml(loaded), sys.stdout.encoding), end="")


@verb.command()
def schema(as_json: JsonOption = False) -> None:
    """List every key with its default and meaning.

    With --json it is a JSON Schema.
    """
    if as_json:
        output.print_json(run_config.json_schema())
        return
    rows = [(info.key, info.default, info.description) for info in run_config.describe_keys()]
    output.print_rows(("KEY", "DEFAULT", "MEANING"), rows)


def _check_rule(loaded: run_config.RunConfig) -> None:
    """Rules know their thresholds; they come with torch, so only where a rule is named."""
    if loaded.exit.rule is None:
        return
    from cdbench.runtime.exits import RULES

    run_config.check_exit(loaded.exit.rule, loaded.exit.threshold, RULES)
