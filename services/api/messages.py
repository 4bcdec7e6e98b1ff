"""The messages of a conversation, on both routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from orchestrator.request import Message, RequestRefused
from orchestrator.settings import MOST_MESSAGES
from services.api.fields import Strict

_MOST_PARTS = 4096


class TextPart(Strict):
    type: Literal["text"]
    text: str


def _nothing(value: object) -> None:
    if value is not None:
        raise ValueError("this is not supported; leave it out or give null")


def _nothing_listed(value: object) -> None:
    if value is not None and value != []:
        raise ValueError("this is not supported; leave it out, or give null or an empty list")


Nothing = Annotated[None, BeforeValidator(_nothing)]
NothingListed = Annotated[None, BeforeValidator(_nothing_listed)]


class ChatMessage(Strict):
    """A message of text. `developer` is another word for `system`.

    An answer's message can be sent back as it is: the fields of OpenAI's that it may have stay empty here.
    """

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=_MOST_PARTS, fail_fast=True)]
    refusal: Nothing = None
    annotations: NothingListed = None
    audio: Nothing = None
    tool_calls: NothingListed = None
    function_call: Nothing = None

    def core(self) -> Message:
        content = self.content if isinstance(self.content, str) else "".join(p.text for p in self.content)
        return Message("system" if self.role == "developer" else self.role, content)


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("this is empty; give a question")
    return value


Query = Annotated[str, AfterValidator(_not_blank)]


def core_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    return tuple(m.core() for m in messages)


def check_messages(messages: Sequence[Message], most: int) -> None:
    """Refuse a conversation that is too long or asks nothing.

    Args:
        most: the setting `limits.max_messages`.

    Raises:
        RequestRefused: naming `messages` or the empty one among them.
    """
    if len(messages) > most:
        raise RequestRefused(
            f"messages: {len(messages)} messages are more than the limit of {most}",
            field="messages",
            code="too_many_messages",
        )
    if all(m.role != "user" for m in messages):
        raise RequestRefused(
            "messages: there is no message of the role 'user'", field="messages", code="no_user_message"
        )
    for index, message in enumerate(messages):
        if message.role == "user" and not message.content.strip():
            field = f"messages.{index}.content"
            raise RequestRefused(
                f"{field}: this is empty; give a question", field=field, code="empty_message"
            )
