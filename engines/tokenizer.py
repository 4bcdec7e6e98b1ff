"""A model's tokenizer and chat template, without torch: this module imports in a fraction of a second."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from engines.chat_template import compile_template

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class ChatTemplateError(Exception):
    """The model's chat template refused the messages, or cannot render them."""


class SpecialTokenInContent(ChatTemplateError):
    """Text of a message would have become a special token, as if the template had written it.

    Args:
        token: the special token's text.
    """

    def __init__(self, token: str) -> None:
        super().__init__(f"text of a message contains the model's special token {token!r}")
        self.token = token


class ModelTokenizer:
    """Text to token ids and back, by the files of a checkpoint folder in the Hugging Face layout.

    Templates see what they see in transformers: a sandbox, `messages`, `add_generation_prompt`, the special
    tokens by name, `raise_exception`, `strftime_now`, and a `tojson` that leaves HTML characters alone.
    """

    def __init__(self, model_dir: str | Path) -> None:
        """Read the files.

        Raises:
            FileNotFoundError: there is no `tokenizer.json` in the folder.
        """
        folder = Path(model_dir)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer.json in {folder}")
        self._tokenizer = Tokenizer.from_file(str(path))
        config = _read(folder / "tokenizer_config.json")
        self._special = {name: text for name in _SPECIAL_NAMES if (text := _content(config.get(name)))}
        self._template = _template(folder, config)
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {number: token.content for number, token in added.items() if token.special}
        self._forbidden = re.compile("|".join(map(re.escape, self._added.values())) or "(?!)")
        # Each special token begins with one of these, so that text without them cannot make one.
        self._openers = frozenset(text[0] for text in self._added.values())
        model = _read(folder / "config.json")
        self.context_tokens: int | None = _context_tokens(model)
        self.eos_ids = self._find_eos(_read(folder / "generation_config.json"), model)
        self.continuation_ids = self._find_continuations()
        """The tokens of the bytes 0x80 and 0xA0 alone, where the vocabulary has bytes; otherwise empty."""

    def _find_eos(self, generation: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[int, ...]:
        found: list[int] = []
        for source in (generation, model):
            ids = source.get("eos_token_id")
            found += ids if isinstance(ids, list) else [] if ids is None else [ids]
        named = self._tokenizer.token_to_id(self._special.get("eos_token", ""))
        return tuple(dict.fromkeys([*found, *([] if named is None else [named])]))

    def _find_continuations(self) -> tuple[int, ...]:
        # As byte-level vocabularies write these bytes, and as those with a fallback to bytes do.
        for names in (("\u0122", "\u0142"), ("<0x80>", "<0xA0>")):
            found = [self._tokenizer.token_to_id(name) for name in names]
            ids = tuple(i for i in found if i is not None)
            if len(ids) == len(names) and all(self.decode([i]) == "\N{REPLACEMENT CHARACTER}" for i in ids):
                return ids
        return ()

    @property
    def vocabulary(self) -> int:
        """Number of tokens, added ones included."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers whose ids mean the same."""
        tokens = self._tokenizer.get_vocab(with_added_tokens=True)
        by_id = sorted((number, token) for token, number in tokens.items())
        return hashlib.sha256(json.dumps(by_id).encode()).hexdigest()

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text; special tokens in it count as such, and none are added."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_id(self, text: str) -> int:
        """The id of a text that is one token.

        Raises:
            ValueError: it is not.
        """
        ids = self.encode(text)
        if len(ids) != 1:
            raise ValueError(f"{text!r} is not one token but {len(ids)}")
        return ids[0]

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> str:
        """The prompt as text, up to where the assistant's answer begins unless told otherwise.

        Args:
            messages: mappings with `role` and `content`, as in OpenAI's chat API.
            template_kwargs: further variables of the template, such as `tools` or `enable_thinking`.

        Raises:
            ChatTemplateError: there is no template, or it refuses.
        """
        if self._template is None:
            raise ChatTemplateError("the model has no chat template")
        variables = {"add_generation_prompt": True, "tools": None, "documents": None, **template_kwargs}
        try:
            text: str = self._template.render(messages=list(messages), **self._special, **variables)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatTemplateError(f"the chat template failed: {error}") from error
        return text

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template_kwargs: Any) -> tuple[int, ...]:
        """Token ids of `render_chat`, where only the template writes special tokens.

        Raises:
            SpecialTokenInContent: text in `messages` or `template_kwargs` would have become one.
            ChatTemplateError: as `render_chat`.
        """
        given = [messages, template_kwargs]
        texts = list(_texts(given))
        for text in texts:
            self._refuse_special(text)
        ids = self.encode(self.render_chat(messages, **template_kwargs))
        if any(opener in text for text in texts for opener in self._openers):
            # A template that joins texts or takes something out of them can still make one of harmless
            # pieces. Then there are more of it than from the same texts without their openers.
            messages, template_kwargs = _replaced(given, str.maketrans(dict.fromkeys(self._openers, "(")))
            harmless = self.encode(self.render_chat(messages, **template_kwargs))
            self._refuse_more_special(ids, harmless)
        return ids

    def encode_chat_parts(
        self, messages: Sequence[Mapping[str, Any]], holes: Sequence[str], **template_kwargs: Any
    ) -> tuple[tuple[int, ...], ...]:
        """Token ids of what stands before, between and after `holes` in a rendered chat.

        What is put into the holes, as ids of its own, can neither change what is around it nor be changed by
        the template; so all that comes before a hole is the same ids whatever is put into it.

        Args:
            messages, template_kwargs: as in `render_chat`; not for texts from outside.
            holes: texts, each of which must come just once, in this order.

        Raises:
            SpecialTokenInContent: text in them would have become one.
            ChatTemplateError: a hole is missing, comes twice or out of order, or as `render_chat`.
        """
        for text in _texts([messages, template_kwargs]):
            self._refuse_special(text)
        rest = self.render_chat(messages, **template_kwargs)
        parts = []
        for hole in holes:
            if rest.count(hole) != 1:
                raise ChatTemplateError(f"the rendered chat has {hole!r} {rest.count(hole)} times, not once")
            part, _, rest = rest.partition(hole)
            parts.append(self.encode(part))
        return (*parts, self.encode(rest))

    def encode_data(self, text: str) -> tuple[int, ...]:
        """Token ids of a text from outside, none of which is special.

        Raises:
            SpecialTokenInContent: one would have been.
        """
        self._refuse_special(text)
        ids = self.encode(text)
        self._refuse_more_special(ids, ())
        return ids

    def encode_turn(self, content: str, **template_kwargs: Any) -> tuple[int, ...]:
        """Token ids of a further user turn, from the end of the answer before it to where the next begins.

        They start with what ends that answer, such as an end-of-turn token.

        Raises:
            SpecialTokenInContent: as `encode_chat`.
            ChatTemplateError: the template refuses a second turn, or changes the first one for it.
        """
        mark = "\u2042 answer \u2042"
        turns = [("user", "question"), ("assistant", mark), ("user", content)]
        self._refuse_special(content)
        text = self.render_chat([{"role": r, "content": c} for r, c in turns], **template_kwargs)
        _, found, after = text.partition(mark)
        if not found or mark in after or content.strip() not in after:
            raise ChatTemplateError("the chat template does not put one turn after another")
        return self.encode(after)

    def _refuse_special(self, text: str) -> None:
        forms = [text]
        if self._tokenizer.normalizer is not None:
            forms.append(self._tokenizer.normalizer.normalize_str(text))
        for form in forms:
            if found := self._forbidden.search(form):
                raise SpecialTokenInContent(found.group())

    def _refuse_more_special(self, ids: Sequence[int], harmless: Sequence[int]) -> None:
        unknown = self._tokenizer.token_to_id(getattr(self._tokenizer.model, "unk_token", None) or "")
        special = self._added.keys() - {unknown}
        more = Counter(i for i in ids if i in special) - Counter(i for i in harmless if i in special)
        for token in more:
            raise SpecialTokenInContent(self._added[token])


def _texts(value: Any) -> Iterator[str]:
    """All texts in a tree of mappings and sequences, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _replaced(value: Any, table: dict[int, str]) -> Any:
    """The same tree with the characters of its texts, but not of its keys, replaced."""
    if isinstance(value, str):
        return value.translate(table)
    if isinstance(value, Mapping):
        return {key: _replaced(item, table) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_replaced(item, table) for item in value]
    return value


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _context_tokens(model: Mapping[str, Any]) -> int | None:
    for config in (model, model.get("text_config") or {}):
        value = config.get("max_position_embeddings")
        if isinstance(value, int):
            return value
    return None


def _template(folder: Path, config: Mapping[str, Any]) -> Any:
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not isinstance(source, str):
        return None
    return compile_template(source)
