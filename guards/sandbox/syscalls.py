"""The system calls that a Python program needs, with their numbers, and those allowed only in part.

An allow list: a call that is not here, or that a later kernel brings, is refused. Numbers are those of
`asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64) of the Linux headers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """How the kernel names a machine.

    Args:
        audit_arch: AUDIT_ARCH_* of `linux/audit.h`, which tells its calls from those of its 32-bit mode.
        column: of `ALLOWED`.
        newest: highest number that was known when the list was made.
    """

    audit_arch: int
    column: int
    newest: int


MACHINES = {
    "x86_64": Machine(audit_arch=0xC000003E, column=0, newest=450),
    "aarch64": Machine(audit_arch=0xC00000B7, column=1, newest=450),
}

# name: (x86_64, aarch64). None: the machine has no such call.
ALLOWED: dict[str, tuple[int, int | None]] = {
    # memory
    "brk": (12, 214), "madvise": (28, 233), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "msync": (26, 227), "munmap": (11, 215),
    # open files
    "close": (3, 57), "close_range": (436, 436), "copy_file_range": (326, 285), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "fadvise64": (221, 223), "fallocate": (285, 47),
    "fcntl": (72, 25), "fdatasync": (75, 83), "flock": (73, 32), "fstat": (5, 80), "fstatfs": (138, 44),
    "fsync": (74, 82), "ftruncate": (77, 46), "lseek": (8, 62), "open": (2, None), "openat": (257, 56),
    "pipe": (22, None), "pipe2": (293, 59), "pread64": (17, 67), "preadv": (295, 69),
    "pwrite64": (18, 68), "pwritev": (296, 70), "read": (0, 63), "readv": (19, 65), "sendfile": (40, 71),
    "write": (1, 64), "writev": (20, 66),
    # names of files
    "access": (21, None), "chdir": (80, 49), "chmod": (90, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fchdir": (81, 50), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fgetxattr": (193, 10), "flistxattr": (196, 13), "getcwd": (79, 17), "getdents": (78, None),
    "getdents64": (217, 61), "getxattr": (191, 8), "lgetxattr": (192, 9), "link": (86, None),
    "linkat": (265, 37), "listxattr": (194, 11), "llistxattr": (195, 12), "lstat": (6, None),
    "mkdir": (83, None), "mkdirat": (258, 34), "newfstatat": (262, 79), "readlink": (89, None),
    "readlinkat": (267, 78), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "rmdir": (84, None), "stat": (4, None), "statfs": (137, 43), "statx": (332, 291),
    "symlink": (88, None), "symlinkat": (266, 36), "truncate": (76, 45), "umask": (95, 166),
    "unlink": (87, None), "unlinkat": (263, 35), "utimensat": (280, 88),
    # waiting
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "epoll_wait": (232, None),
    "eventfd2": (290, 19), "poll": (7, None), "ppoll": (271, 73), "pselect6": (270, 72),
    "select": (23, None),
    # time
    "alarm": (37, None), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "getitimer": (36, 102), "gettimeofday": (96, 169),
    "nanosleep": (35, 101), "setitimer": (38, 103), "time": (201, None), "times": (100, 153),
    # signals, to itself alone
    "pause": (34, None), "restart_syscall": (219, 128), "rt_sigaction": (13, 134),
    "rt_sigpending": (127, 136), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137), "sigaltstack": (131, 132),
    "tgkill": (234, 131),
    # the process and its threads; execve starts the interpreter itself, and there is nothing else to run
    "arch_prctl": (158, None), "execve": (59, 221), "exit": (60, 93), "exit_group": (231, 94),
    "futex": (202, 98), "get_robust_list": (274, 100), "getcpu": (309, 168), "getegid": (108, 177),
    "geteuid": (107, 175), "getgid": (104, 176), "getgroups": (115, 158), "getpgid": (121, 155),
    "getpgrp": (111, None), "getpid": (39, 172), "getppid": (110, 173), "getpriority": (140, 141),
    "getrandom": (318, 278), "getresgid": (120, 150), "getresuid": (118, 148), "getrlimit": (97, 163),
    "getrusage": (98, 165), "getsid": (124, 156), "gettid": (186, 178), "getuid": (102, 174),
    "membarrier": (324, 283), "prlimit64": (302, 261), "rseq": (334, 293),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_yield": (24, 124), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "setrlimit": (160, 164), "sysinfo": (99, 179), "uname": (63, 160), "wait4": (61, 260),
    # a socket pair is an event loop's way to wake itself; it leads nowhere else
    "getsockname": (51, 204), "getsockopt": (55, 209), "recvfrom": (45, 207), "shutdown": (48, 210),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArgumentTest:
    """Holds when 32 bits of an argument, masked, are one of `values`.

    Args:
        argument: which, from 0.
        values: legal values.
        mask: what of the argument counts.
        high: its upper 32 bits instead of the lower ones.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    high: bool = False


_AF_UNIX = 1
_CLONE_THREAD = 0x00010000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_CLONE_NEW = 0x00000080 | 0x00020000 | 0x7E000000
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)

# name: (x86_64, aarch64, tests that must all hold)
ALLOWED_IF: dict[str, tuple[int, int, tuple[ArgumentTest, ...]]] = {
    "clone": (56, 220, (ArgumentTest(0, (_CLONE_THREAD,), mask=_CLONE_THREAD | _CLONE_NEW),)),
    "ioctl": (16, 29, (ArgumentTest(1, _IOCTLS),)),
    "sendto": (44, 206, (ArgumentTest(4, (0,)), ArgumentTest(4, (0,), high=True))),
    "socketpair": (53, 199, (ArgumentTest(0, (_AF_UNIX,)),)),
}

# The C library falls back to an older call when it is told that the kernel has no such call. clone3 keeps
# its flags in memory, where a filter cannot look.
UNKNOWN: dict[str, tuple[int, int]] = {"clone3": (435, 435)}
