"""Field types that the request schemas share."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.request import Effort, Message

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Technique = Annotated[str, Field(min_length=1, max_length=64)]
ModelName = Annotated[str, Field(min_length=1, max_length=128)]


class Strict(BaseModel):
    """A request body: unknown fields are refused, and no string is taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """A message of text. `developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]

    def core(self) -> Message:
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return Message("system" if self.role == "developer" else self.role, content)


class JsonSchemaFormat(Strict):
    name: Annotated[str, Field(max_length=64)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """`text`, `json_object` or `json_schema`; every sample is constrained to it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def schema_text(self) -> str | None:
        """The JSON schema to generate under, or None for free text.

        Raises:
            ValueError: `json_schema` is missing with that type, or given with another.
        """
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' goes with type 'json_schema', and only with it")
        if self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return '{"type": "object"}' if self.type == "json_object" else None


class PonderaOptions(Strict):
    """What the OpenAI schema has no field for."""

    effort: Effort | None = None
    technique: Technique | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    max_total_tokens: Positive | None = None
    deadline_ms: Positive | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None


def core_messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    return tuple(m.core() for m in messages)
