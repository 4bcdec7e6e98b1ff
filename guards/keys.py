"""API keys: `pnd_<key id>_<secret>`."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_ID_BYTES = 8
_SECRET_BYTES = 32  # 256 bits, 43 characters of base64url
_FORM = re.compile(r"pnd_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_LENGTH = len("pnd_") + 2 * _ID_BYTES + 1 + 43
# Compared against when a key id is unknown. No secret has this digest as far as anyone can find out.
_NO_DIGEST = "0" * 64


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key in the clear. Its secret shows only in `reveal()`."""

    id: str
    secret: str = field(repr=False)

    def reveal(self) -> str:
        """The text a client sends. Show it once and keep only `digest(key)`."""
        return f"pnd_{self.id}_{self.secret}"


def new_key() -> ApiKey:
    """A fresh random key; the secret has 256 bits."""
    return ApiKey(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))


def parse(raw: str) -> ApiKey | None:
    """The key in `raw`, or None when it is malformed or oversized."""
    if len(raw) != _LENGTH:
        return None
    match = _FORM.fullmatch(raw)
    return None if match is None else ApiKey(match[1], match[2])


def digest(key: ApiKey) -> str:
    """What is stored of a key: the SHA-256 of its secret, in hex.

    A slow password hash buys nothing here: it slows down guessing, and 256 random bits are not guessable
    at any speed. It would cost every request its time and hand out a way to load the server.
    """
    return hashlib.sha256(key.secret.encode()).hexdigest()


def matches(key: ApiKey, stored: str | None) -> bool:
    """Whether `key` has the stored digest, in constant time; None (unknown key id) never matches.

    An unknown id does the same work as a wrong secret, so that the time taken tells nothing.
    """
    same = hmac.compare_digest(digest(key), _NO_DIGEST if stored is None else stored)
    return same and stored is not None
