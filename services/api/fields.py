"""Field types that the request schemas share."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

_MOST_BIASES = 4096
_TOKEN_ID = re.compile(r"[0-9]{1,10}")
_MOST_TOKENS = 2**53 - 1  # the largest integer that every JSON parser reads exactly

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Positive = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
TopK = Annotated[int, Field(ge=0, le=2**31 - 1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(gt=0, le=2)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]
Technique = Annotated[str, Field(min_length=1, max_length=64)]
ModelName = Annotated[str, Field(min_length=1, max_length=128)]


class Strict(BaseModel):
    """A request body: unknown fields are refused, and no string is taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class JsonSchemaFormat(Strict):
    name: Annotated[str, Field(max_length=64)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None

    @field_validator("strict")
    @classmethod
    def _always(cls, value: bool | None) -> bool | None:
        if value is False:
            raise ValueError("every answer keeps to the schema; false cannot be honoured")
        return value


class ResponseFormat(Strict):
    """`text`, `json_object` or `json_schema`; every sample is constrained to it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' goes with type 'json_schema', and only with it")
        return self

    def schema_text(self) -> str | None:
        """The JSON schema to generate under, or None for free text."""
        if self.json_schema is not None:
            return json.dumps(self.json_schema.schema_)
        return '{"type": "object"}' if self.type == "json_object" else None


def _token_ids(biases: dict[str, float]) -> dict[str, float]:
    if len(biases) > _MOST_BIASES:
        raise ValueError(f"at most {_MOST_BIASES} entries, got {len(biases)}")
    for key in biases:
        if _TOKEN_ID.fullmatch(key) is None:
            raise ValueError(f"{key[:16]!r} is not a token id; a key has 1 to 10 of the digits 0 to 9")
    if len({int(key) for key in biases}) < len(biases):
        raise ValueError("a token id is given twice")
    return biases


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    AfterValidator(_token_ids),
]
