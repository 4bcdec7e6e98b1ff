"""Checks isolation by trying to break it: programs that reach for what they must not get."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

from guards.sandbox.errors import SandboxFailed, SandboxUnavailable
from guards.sandbox.launch import Setting
from guards.sandbox.limits import MIB, Program, SandboxLimits, SandboxResult

_LIMITS = SandboxLimits(
    wall_s=20.0, cpu_s=5, memory_bytes=128 * MIB, file_bytes=MIB, disk_bytes=2 * MIB, processes=8
)

# Prints a line for each attempt that got through. Its input is the port of a listener on the host.
_ATTEMPTS = """
import ctypes, os, socket, threading

def through(name, action, *, but=()):
    try:
        got = action()
    except (OSError, MemoryError, RuntimeError):
        return
    if got not in but:
        print(name)

def write(path, count):
    with open(path, "wb") as file:
        for _ in range(count):
            file.write(b"x" * 65536)

def threads():
    wait = threading.Event()
    started = []
    try:
        for _ in range(64):
            t = threading.Thread(target=wait.wait, daemon=True)
            t.start()
            started.append(t)
    except RuntimeError:
        pass
    wait.set()
    for t in started:
        t.join()
    return len(started)

def fork():
    if os.fork() == 0:
        os._exit(0)

port = int(input())
call = ctypes.CDLL(None, use_errno=True).syscall
unshare, bpf = {"x86_64": (272, 321), "aarch64": (97, 280)}[os.uname().machine]
through("network", lambda: socket.create_connection(("127.0.0.1", port), 1).close())
through("unix sockets", lambda: socket.socket(socket.AF_UNIX).close())
through("host files", lambda: open("/etc/passwd").read())
through("proc", lambda: os.listdir("/proc"))
through("root files", lambda: os.listdir("/root"))
through("writable root", lambda: write("/probe", 1))
through("writable interpreter", lambda: write("/py/probe", 1))
through("file size", lambda: write("/work/large", 17))
through("disk size", lambda: [write(f"/work/{n}", 15) for n in range(3)])
through("another process", fork)
through("user namespaces", lambda: call(unshare, 0x10000000), but=(-1,))
through("bpf", lambda: call(bpf, 0, None, 0), but=(-1,))
through("memory", lambda: bytearray(MEMORY))
through("tasks", threads, but=range(TASKS))
through("root", lambda: os.getuid() == 0 or os.geteuid() == 0, but=(False,))
through("groups", lambda: len(set(os.getgroups()) - {os.getgid(), 65534}), but=(0,))
through("environment", lambda: set(os.environ) - {"PWD"}, but=(set(),))
print("end")
"""

RunOne = Callable[[Setting, Program, SandboxLimits], SandboxResult]


def check_isolation(setting: Setting, run: RunOne) -> Setting:
    """Check that the sandbox isolates.

    Args:
        setting: as the host offers it.
        run: runs a program.

    Returns:
        The setting to use: without control groups where programs cannot be put into them.

    Raises:
        SandboxUnavailable: something gets through, or programs cannot be run; the text says what.
    """
    if os.geteuid() == 0 and not setting.run_as:
        raise SandboxUnavailable("programs would run as root")
    try:
        run(setting, Program("pass"), _LIMITS)
    except SandboxFailed as exc:
        if setting.cgroups is None:
            raise SandboxUnavailable(str(exc)) from exc
        setting = replace(setting, cgroups=None)
    source = _ATTEMPTS.replace("MEMORY", str(_LIMITS.memory_bytes)).replace("TASKS", str(_LIMITS.processes))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        try:
            result = run(setting, Program(source, f"{port}\n"), _LIMITS)
        except SandboxFailed as exc:
            raise SandboxUnavailable(str(exc)) from exc
    *through, end = result.stdout.split("\n")[:-1] or [""]
    if not result.succeeded or end != "end":
        raise SandboxUnavailable(
            f"the trial run ended wrongly ({result.ended}): {result.stderr[-1000:].strip()}"
        )
    if through:
        raise SandboxUnavailable(f"isolation is not complete; open are: {', '.join(through)}")
    return setting
