"""`pondera config`."""

from __future__ import annotations

import typer

from orchestrator.settings import effective
from services.cli.options import Config, Set, StateDir, settings_or_exit


def build() -> typer.Typer:
    app = typer.Typer(help="Look at settings.", no_args_is_help=True)

    @app.command()
    def show(config: Config = None, state_dir: StateDir = None, set_: Set = None) -> None:
        """Print the effective settings, as `serve` would use them."""
        for key, value in effective(settings_or_exit(config, {"state_dir": state_dir}, set_)):
            print(f"{key} = {value}")

    @app.command()
    def check(config: Config = None, set_: Set = None) -> None:
        """Check the settings and say nothing if they are legal."""
        settings_or_exit(config, {}, set_)

    return app
