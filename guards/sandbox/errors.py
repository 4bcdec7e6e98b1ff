"""What the sandbox raises."""

from __future__ import annotations


class SandboxUnavailable(Exception):
    """Isolation is missing here, or was not checked: nothing may be run. The text says what is missing."""


class SandboxFailed(Exception):
    """One run could not be set up or ended as it must be. It says nothing about the program."""
