"""Options and helpers that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from orchestrator.settings import Settings, SettingsError, load
from services.cli.terminal import printable

Config = Annotated[
    Path | None, typer.Option("--config", "-c", envvar="PONDERA_CONFIG", help="A YAML file of settings.")
]
StateDir = Annotated[Path | None, typer.Option(help="Where data and model files are kept.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, as dotted.key=value; may be repeated.")
]


def settings_or_exit(
    config: Path | None, overrides: dict[str, Any], extra: list[str] | None = None
) -> Settings:
    """The effective settings; a setting that is wrong ends the command with status 2."""
    for item in extra or []:
        key, separator, value = item.partition("=")
        if not separator:
            fail(f"--set needs dotted.key=value, got {item!r}", 2)
        overrides[key] = value
    try:
        return load(config, overrides)
    except SettingsError as e:
        fail(str(e), 2)


def fail(message: str, status: int = 1) -> NoReturn:
    """Print an error and end the command."""
    typer.secho(f"pondera: {printable(message)}", fg="red", err=True)
    raise typer.Exit(status)
