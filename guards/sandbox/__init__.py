"""Runs Python programs that nobody trusts: written by a model, or sent by a client.

Each run is a process of its own under bubblewrap, with an empty environment, without a network, seeing none
of the host's files, behind a list of allowed system calls, and within limits on time, memory, files, output
and tasks. Where any of this is missing, nothing runs.
"""

from guards.sandbox.errors import SandboxFailed, SandboxUnavailable
from guards.sandbox.limits import Program, SandboxLimits, SandboxResult
from guards.sandbox.sandbox import Sandbox

__all__ = ["Program", "Sandbox", "SandboxFailed", "SandboxLimits", "SandboxResult", "SandboxUnavailable"]
