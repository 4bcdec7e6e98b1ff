"""All settings, from (weakest first) defaults, a YAML file, `PONDERA_*` variables and the command line.

Unknown keys are refused wherever they come from. Nested keys in the environment are joined by two
underscores: `PONDERA_LIMITS__MAX_BODY_BYTES=65536`; lists and objects are given as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

ENV_PREFIX = "PONDERA_"
ENV_DELIMITER = "__"
MOST_MESSAGES = 65_536
"""The largest `limits.max_messages`; schemas refuse longer lists without looking at them."""
# Read by the command line, not settings of the server.
CLIENT_VARIABLES = frozenset({"PONDERA_API_KEY", "PONDERA_BASE_URL", "PONDERA_CONFIG"})


class SettingsError(ValueError):
    """A setting is unknown or has an illegal value; the message names it."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ThinkingSettings(_Section):
    """The texts around a thinking section. `starts_inside`: the chat template already opens it."""

    open: Annotated[str, Field(min_length=1, max_length=64)] = "<think>"
    close: Annotated[str, Field(min_length=1, max_length=64)] = "</think>"
    starts_inside: bool = False

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.open == self.close:
            raise ValueError("'open' and 'close' must differ")
        return self


StepEnd: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]


class ModelSettings(_Section):
    """One served model. `source` names a model that `pondera models prepare` knows; `path` is a folder."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}$")]
    source: str | None = None
    path: Path | None = None
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    max_total_tokens: Annotated[int, Field(ge=512)] = 32_768
    """KV-cache tokens of one replica."""
    max_running_requests: Annotated[int, Field(ge=1, le=4096)] = 64
    context_tokens: Annotated[int, Field(ge=16)] | None = None
    """None: as the model's own config says."""
    threads: Annotated[int, Field(ge=1, le=512)] = 2
    stream_interval: Annotated[int, Field(ge=1, le=1024)] = 16
    max_new_tokens: Annotated[int, Field(ge=1)] = 1024
    """Tokens of one sample when the request names no limit."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.8
    """Sampling temperature when the request names none and the technique draws more than one sample."""
    step_ends: Annotated[tuple[StepEnd, ...], Field(min_length=1, max_length=4)] = ("\n\n",)
    """Strings that end a step of its reasoning, for techniques that search over steps."""
    step_tokens: Annotated[int, Field(ge=1)] = 512
    """The most tokens of one step."""
    role: Literal["generate", "reward"] = "generate"
    """`reward`: it has a reward head, serves no requests itself, and scores the paths of others."""
    reward_model: str | None = None
    """Name of the model with role `reward` that scores this one's paths; None: its own process reward."""
    judge_model: str | None = None
    """Name of the model that judges this one's answers by reading them; it may be itself. None: nobody."""
    thinking: ThinkingSettings | None = None
    """How the model marks its thinking; None for one that does not think aloud, or a known `source`."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the engine, by the engine's own names."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) == (self.path is None):
            raise ValueError(f"model {self.name!r} needs exactly one of 'source' and 'path'")
        return self


class LimitSettings(_Section):
    """Bounds that hold for every request."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    body_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """How long a client may take to send a body."""
    max_messages: Annotated[int, Field(ge=1, le=MOST_MESSAGES)] = 256
    max_concurrent_requests: Annotated[int, Field(ge=1)] = 1024
    """Requests to `/v1/` at one time, whether they search, wait or are still being read."""
    max_concurrent_searches: Annotated[int, Field(ge=1)] = 64
    max_total_tokens: Annotated[int, Field(ge=1)] = 65_536
    """Hard cap over one request when the request names none, and the largest that it may name."""
    default_deadline_ms: Annotated[int, Field(ge=1)] = 120_000
    max_deadline_ms: Annotated[int, Field(ge=1)] = 600_000
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    """How long a reservation outlives a holder that stopped renewing it."""
    log_entries: Annotated[int, Field(ge=0)] = 20_000
    """Longest event log kept of one search."""


class RaySettings(_Section):
    """The Ray cluster. `address` None starts a local one that ends with the server."""

    address: str | None = None
    num_cpus: Annotated[int, Field(ge=1)] | None = None
    object_store_bytes: Annotated[int, Field(ge=80_000_000)] = 134_217_728


def default_models() -> tuple[ModelSettings, ...]:
    return (
        ModelSettings(
            name="tiny-reasoner", source="tiny-reasoner", dtype="float32", max_new_tokens=128,
            max_total_tokens=32_768, threads=1, stream_interval=32, step_ends=("\n",), step_tokens=48,
        ),
        ModelSettings(
            name="smollm2-135m-instruct", source="smollm2-135m-instruct", dtype="bfloat16",
            max_new_tokens=256, max_total_tokens=16_384, context_tokens=2048, max_running_requests=32,
            judge_model="smollm2-135m-instruct",
        ),
    )  # fmt: skip


class Settings(BaseSettings):
    """The effective settings of a server."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_DELIMITER, extra="forbid", frozen=True
    )

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    state_dir: Path = Path(".pondera")
    redis_url: SecretStr | None = None
    """None: an embedded Valkey under `state_dir`."""
    models: Annotated[tuple[ModelSettings, ...], Field(min_length=1)] = Field(default_factory=default_models)
    limits: LimitSettings = LimitSettings()
    ray: RaySettings = RaySettings()
    code_verifier: bool = True
    """Whether code that a model wrote may be run in the sandbox for tenants that allow it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _models_fit(self) -> Self:
        names = [m.name for m in self.models]
        if len(set(names)) != len(names):
            raise ValueError(f"model names must differ, got {names}")
        roles = {m.name: m.role for m in self.models}
        if "generate" not in roles.values():
            raise ValueError("models: at least one needs the role 'generate'")
        for model in self.models:
            for key, role in (("reward_model", "reward"), ("judge_model", "generate")):
                other = getattr(model, key)
                if other is not None and roles.get(other) != role:
                    legal = ", ".join(name for name, r in roles.items() if r == role) or "none"
                    raise ValueError(f"model {model.name!r}: {key} must be one of: {legal}; not {other!r}")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load` merges all sources itself, since the command line must win over the environment.
        return (init_settings,)


def load(
    config: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Read the effective settings.

    Args:
        config: a YAML file, or None.
        overrides: what the command line said; dotted keys (`limits.lease_s`), None values are skipped.

    Raises:
        SettingsError: naming the key and, where there is a choice, the legal values.
    """
    _refuse_unknown_variables(os.environ)
    try:
        merged = _merge(_read(config), EnvSettingsSource(Settings)())
        for key, value in (overrides or {}).items():
            if value is not None:
                merged = _merge(merged, _nested(key, value))
        return Settings(**merged)
    except ValueError as e:
        raise SettingsError(_readable(e)) from None


def effective(settings: Settings) -> list[tuple[str, str]]:
    """Dotted names and values for display; secrets are masked."""
    return list(_flatten("", settings.model_dump(mode="json")))


def _read(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        data = yaml.safe_load(config.read_text("utf-8"))
    except OSError as e:
        raise SettingsError(f"cannot read the config file {config}: {e.strerror}") from None
    except yaml.YAMLError as e:
        raise SettingsError(f"{config} is not valid YAML: {e}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise SettingsError(f"{config} must hold a mapping of settings")
    return data


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    # Names are taken in any case of letters, as they are when they are read.
    for name in sorted(environ):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in CLIENT_VARIABLES:
            _check_variable(name, name[len(ENV_PREFIX) :].lower().split(ENV_DELIMITER))


def _check_variable(name: str, parts: Sequence[str]) -> None:
    """Follow a variable's parts into the sections; what lies below a plain value would be dropped."""
    section: type[BaseModel] = Settings
    path = ENV_PREFIX
    for depth, part in enumerate(parts):
        if part not in section.model_fields:
            legal = ", ".join(path + f.upper() for f in section.model_fields)
            raise SettingsError(f"unknown variable {name}; known: {legal}")
        path += part.upper()
        below = section.model_fields[part].annotation
        if depth + 1 == len(parts):
            return
        if not (isinstance(below, type) and issubclass(below, BaseModel)):
            raise SettingsError(f"unknown variable {name}; {path} has no parts and is given whole")
        section = below
        path += ENV_DELIMITER


def _merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(weak)
    for key, value in strong.items():
        old = out.get(key)
        out[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _nested(key: str, value: object) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return cast(dict[str, Any], value)


def _readable(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for e in error.errors(include_url=False, include_input=False):
        where = ".".join(str(p) for p in e["loc"]) or "settings"
        lines.append(f"{where}: " + ("unknown setting" if e["type"] == "extra_forbidden" else e["msg"]))
    return "; ".join(lines)


def _flatten(prefix: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for k, v in value.items():
            yield from _flatten(f"{prefix}.{k}" if prefix else str(k), v)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for i, v in enumerate(value):
            name = v.get("name", i) if isinstance(v, dict) else i
            yield from _flatten(f"{prefix}[{name}]", v)
    else:
        yield prefix, "" if value is None else str(value)
