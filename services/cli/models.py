"""`pondera models`."""

from __future__ import annotations

from typing import Annotated

import typer

from engines.models import KNOWN_MODELS, ModelPreparationError
from orchestrator.deployment import prepare_model
from orchestrator.settings import ModelSettings
from services.cli.options import Config, StateDir, fail, settings_or_exit
from services.cli.progress import progress


def build() -> typer.Typer:
    app = typer.Typer(help="Model files.", no_args_is_help=True)

    @app.command()
    def prepare(
        names: Annotated[
            list[str] | None, typer.Argument(help="Known models; all of the config if none.")
        ] = None,
        config: Config = None,
        state_dir: StateDir = None,
    ) -> None:
        """Make the files of models ready; what is ready already is left alone."""
        settings = settings_or_exit(config, {"state_dir": state_dir})
        wanted = [ModelSettings(name=n, source=n) for n in names or []] or list(settings.models)
        with progress() as report:
            for model in wanted:
                try:
                    files = prepare_model(settings, model, report)
                except (ValueError, OSError, ModelPreparationError) as e:
                    fail(str(e))
                print(f"{model.name}: {files.path}")

    @app.command("list")
    def list_() -> None:
        """The models that `prepare` knows."""
        for name in KNOWN_MODELS:
            print(name)

    return app
