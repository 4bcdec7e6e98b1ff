"""Verifiers as clients ask for them: who judges the candidates of a query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from orchestrator.request import VerifierKind, VerifierWish
from services.api.fields import Strict

_MOST_CASES = 100

Expected: TypeAlias = Annotated[str, Field(min_length=1, max_length=2000)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)]
Program: TypeAlias = Annotated[str, Field(min_length=1, max_length=65_536)]
Stream: TypeAlias = Annotated[str, Field(max_length=65_536)]
VerifierMode: TypeAlias = Literal["fallback", "all"]

_NEEDS: dict[VerifierKind, tuple[str, ...]] = {
    "process_reward": (),
    "judge": (),
    "math": ("expected",),
    "exact": ("expected",),
    "regex": ("pattern",),
    "json_schema": ("schema",),
    "code": ("asserts", "cases"),
}


class CodeCase(Strict):
    """What the program reads, and what it must write."""

    stdin: Stream = ""
    stdout: Stream


class VerifierBody(Strict):
    """One verifier; which other field it needs depends on its kind."""

    kind: VerifierKind
    expected: Expected | None = None
    pattern: Pattern | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    asserts: Program | None = None
    cases: Annotated[list[CodeCase] | None, Field(min_length=1, max_length=_MOST_CASES)] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = {
            "expected": self.expected,
            "pattern": self.pattern,
            "schema": self.schema_,
            "asserts": self.asserts,
            "cases": self.cases,
        }
        legal = _NEEDS[self.kind]
        named = [name for name, value in given.items() if value is not None]
        for name in named:
            if name not in legal:
                raise ValueError(f"a verifier of kind {self.kind!r} takes no {name!r}")
        if legal and len(named) != 1:
            raise ValueError(f"a verifier of kind {self.kind!r} needs exactly one of: {', '.join(legal)}")
        return self

    def wish(self) -> VerifierWish:
        return VerifierWish(
            kind=self.kind,
            expected=self.expected,
            pattern=self.pattern,
            schema=None if self.schema_ is None else json.dumps(self.schema_),
            asserts=self.asserts,
            cases=tuple((c.stdin, c.stdout) for c in self.cases or ()),
        )


Verifiers: TypeAlias = Annotated[list[VerifierBody], Field(max_length=8)]


def wishes(verifiers: Sequence[VerifierBody]) -> tuple[VerifierWish, ...]:
    return tuple(verifier.wish() for verifier in verifiers)
