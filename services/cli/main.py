"""The `pondera` command."""

from __future__ import annotations

import typer

from services.cli import ask, config, models, serve, tenants


def build() -> typer.Typer:
    """The command tree."""
    app = typer.Typer(
        name="pondera",
        help="Test-time-compute reasoning for open models.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.command("serve")(serve.serve)
    app.command("ask")(ask.ask)
    app.add_typer(models.build(), name="models")
    app.add_typer(tenants.build(), name="tenants")
    app.add_typer(config.build(), name="config")
    return app


def main() -> None:
    build()()
