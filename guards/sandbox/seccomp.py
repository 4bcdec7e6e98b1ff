"""Makes the system call filter as classic BPF, which the kernel runs on each call (seccomp(2))."""

from __future__ import annotations

import errno
import struct

from guards.sandbox.errors import SandboxUnavailable
from guards.sandbox.syscalls import ALLOWED, ALLOWED_IF, MACHINES, UNKNOWN, ArgumentTest

_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets in struct seccomp_data.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

Instruction = tuple[int, int, int, int]


def seccomp_filter(machine: str) -> bytes:
    """The filter for `machine`, an array of struct sock_filter.

    Calls of another architecture kill the process; a call of the list passes; a call newer than the list
    is answered with ENOSYS and any other with EPERM.

    Raises:
        SandboxUnavailable: no list was made for this machine.
    """
    known = MACHINES.get(machine)
    if known is None:
        raise SandboxUnavailable(f"no system call list for {machine}, only for {', '.join(MACHINES)}")
    # x32 calls have numbers from 0x40000000 on x86_64, and so count as newer ones.
    code = [(_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, known.audit_arch), _return(_KILL_PROCESS)]
    code += [(_LOAD, 0, 0, _NUMBER), (_JUMP_GREATER, 0, 1, known.newest), _refuse(errno.ENOSYS)]
    for numbers in ALLOWED.values():
        number = numbers[known.column]
        if number is not None:
            code += [(_JUMP_EQUAL, 0, 1, number), _return(_ALLOW)]
    for unknown in UNKNOWN.values():
        code += [(_JUMP_EQUAL, 0, 1, unknown[known.column]), _refuse(errno.ENOSYS)]
    for first, second, tests in ALLOWED_IF.values():
        checks = [instruction for test in tests for instruction in _check(test)]
        code += [(_JUMP_EQUAL, 0, len(checks) + 1, (first, second)[known.column]), *checks, _return(_ALLOW)]
    code.append(_refuse(errno.EPERM))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _check(test: ArgumentTest) -> list[Instruction]:
    """Goes on behind its end when the test holds, and refuses the call otherwise."""
    offset = _ARGUMENTS + 8 * test.argument + (4 if test.high else 0)
    count = len(test.values)
    equal = [(_JUMP_EQUAL, count - at, 0, value) for at, value in enumerate(test.values)]
    return [(_LOAD, 0, 0, offset), (_AND, 0, 0, test.mask), *equal, _refuse(errno.EPERM)]


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _refuse(error: int) -> Instruction:
    return _return(_ERRNO | error)
