"""SGLang's refusals in our words: its own may quote the request, and name files of the host."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from engines import private_log
from engines.protocol import EngineError, EngineRefused, GenerateRequest


def refused(error: ValueError) -> EngineError:
    """For what SGLang raises when it is given a call."""
    private_log.write(f"SGLang refused a call: {error}")
    return EngineError("the engine refused the call")


def ended(reason: Mapping[str, Any], request: GenerateRequest) -> EngineError:
    """For a generation that SGLang ended with a `finish_reason` of type `abort` that has a status code."""
    message, status = str(reason.get("message")), reason.get("status_code")
    private_log.write(f"SGLang ended a call with status {status}: {message}")
    for name in ("json_schema", "regex"):
        if getattr(request.sampling, name) is not None and "grammar" in message.lower():
            return EngineRefused(f"{name} cannot be compiled", name)
    if status == HTTPStatus.BAD_REQUEST:
        return EngineError("the engine refused the call")
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return EngineError("the engine is too busy for the call")
    return EngineError("the engine failed to serve the call")
