"""The Lua scripts of the store, shipped as package data in `guards/lua`."""

from __future__ import annotations

from importlib import resources


def load_script(*names: str, flags: str = "") -> str:
    """The text of the named scripts, in this order, as one script for EVAL.

    The `#!lua` line makes the server check its memory limit before the script starts, so that a script
    is never cut off half-way.

    Args:
        names: file names in `guards/lua` without `.lua`.
        flags: script flags, for example `no-writes` or `allow-oom`.
    """
    folder = resources.files("guards").joinpath("lua")
    parts = [folder.joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names]
    return "\n".join([f"#!lua flags={flags}", *parts])
