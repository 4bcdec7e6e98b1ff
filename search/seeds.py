"""Seeds for the samples of a search: stable across processes, machines and Python versions."""

from __future__ import annotations

import hashlib


def derive_seed(search_seed: int, sample: int, segment: int) -> int:
    """The sampling seed (0 <= seed < 2**31) of one segment of one sample.

    Each sample, and each continuation of it, gets a seed of its own, so that no two siblings draw the
    same text and a search repeats exactly from its own seed.
    """
    name = f"{search_seed}/{sample}/{segment}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=4).digest(), "big") & 0x7FFFFFFF
