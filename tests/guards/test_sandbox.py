"""Programs in the sandbox try to get out of it. None of these is skipped: without isolation they fail."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from guards.sandbox import Program, Sandbox, SandboxLimits, SandboxUnavailable

MIB = 1 << 20
CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    result = libc.syscall(*args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(concurrency=2)
    asyncio.run(sandbox.probe())
    yield sandbox
    asyncio.run(sandbox.close())


_ATTEMPTS = """
import json, sys
attacks = json.load(sys.stdin)
for attack in attacks:
    try:
        exec(attack, globals())
        print("through")
    except BaseException as e:
        print(type(e).__name__)
"""


async def attempts(
    sandbox: Sandbox, *attacks: str, setup: str = "", limits: SandboxLimits | None = None
) -> dict[str, str]:
    """What attacks, made one after another in one run, came to: `through`, or what stopped each."""
    result = await sandbox.run(setup + _ATTEMPTS, stdin=json.dumps(attacks), limits=limits)
    assert result.succeeded, result
    return dict(zip(attacks, result.stdout.splitlines()[-len(attacks) :], strict=True))


async def attempt(
    sandbox: Sandbox, attack: str, *, setup: str = "", limits: SandboxLimits | None = None
) -> str:
    """What one attack came to."""
    return (await attempts(sandbox, attack, setup=setup, limits=limits))[attack]


async def test_a_program_runs_with_its_input_and_says_how_it_ended(sandbox: Sandbox) -> None:
    program = "import sys\nprint(input())\nprint('oh', file=sys.stderr)\nsys.exit(3)"
    result = await sandbox.run(program, stdin="häh\n")
    assert (result.ended, result.exit_status, result.stdout, result.stderr) == ("exited", 3, "häh\n", "oh\n")
    assert not result.succeeded and not result.stdout_cut and not result.stderr_cut
    assert 0 < result.wall_s < 10 and 0 < result.cpu_s < 5


async def test_no_file_of_the_host_can_be_read(sandbox: Sandbox) -> None:
    paths = [
        "/etc/passwd",
        "/proc/1/environ",
        "/proc/self/mem",
        "/sys/kernel/mm",
        "/dev/mem",
        "/dev/kmsg",
        __file__,
    ]
    outcomes = await attempts(sandbox, *(f"open({path!r}, 'rb').read(1)" for path in paths))
    assert set(outcomes.values()) == {"FileNotFoundError"}, outcomes


async def test_no_directory_of_the_host_can_be_listed(sandbox: Sandbox) -> None:
    paths = ["/root", "/home", "/proc", "/sys", "/etc", "/usr/bin", "/bin", str(Path(__file__).parent)]
    outcomes = await attempts(sandbox, *(f"import os; os.listdir({path!r})" for path in paths))
    assert set(outcomes.values()) == {"FileNotFoundError"}, outcomes


async def test_nothing_outside_the_work_directory_can_be_written(sandbox: Sandbox) -> None:
    paths = ["/x", "/py/x", "/py/boot.py", "/code/x", "/main.py", "/dev/x", "/usr/x", "/etc/x", "/root/x"]
    outcomes = await attempts(sandbox, *(f"open({path!r}, 'ab').write(b'x')" for path in paths))
    assert set(outcomes.values()) <= {"OSError", "PermissionError", "FileNotFoundError"}, outcomes


async def test_the_work_directory_can_be_used_and_is_empty_for_each_run(sandbox: Sandbox) -> None:
    program = (
        "import os, tempfile\nprint(os.listdir('.'))\nopen('f', 'w').write('x')\ntempfile.TemporaryFile()"
    )
    assert [(await sandbox.run(program)).stdout for _ in range(2)] == ["[]\n", "[]\n"]


async def test_the_network_is_out_of_reach_while_the_host_reaches_the_same_listener(sandbox: Sandbox) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5):
            pass
        attack = f"socket.create_connection({address!r}, timeout=2)"
        assert await attempt(sandbox, attack, setup="import socket") == "PermissionError"
        # And not only because of the filter: nothing leads there.
        listener.setblocking(False)
        listener.accept()
        with pytest.raises(BlockingIOError):
            listener.accept()


async def test_no_socket_of_any_kind_can_be_made(sandbox: Sandbox) -> None:
    kinds = ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG"]
    attacks = [f"import socket; socket.socket(socket.{kind}, socket.SOCK_DGRAM)" for kind in kinds]
    outcomes = await attempts(sandbox, *attacks)
    assert set(outcomes.values()) == {"PermissionError"}, outcomes


async def test_a_socket_pair_sends_nowhere_but_to_its_other_end(sandbox: Sandbox) -> None:
    setup = (
        "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\na.send(b'x')\nb.recv(1)"
    )
    assert await attempt(sandbox, "a.sendto(b'x', '\\0somebody')", setup=setup) == "PermissionError"
    assert await attempt(sandbox, "socket.send_fds(a, [b'x'], [1])", setup=setup) == "PermissionError"


async def test_there_is_no_shell(sandbox: Sandbox) -> None:
    assert (
        await attempt(sandbox, "os.execv('/bin/sh', ['sh', '-c', 'echo'])", setup="import os")
        == "FileNotFoundError"
    )


@pytest.mark.parametrize("attack", ["os.fork()", "os.posix_spawn('/py/bin/python3.11', ['p', '-c', ''], {})"])
async def test_no_process_can_be_started(sandbox: Sandbox, attack: str) -> None:
    assert await attempt(sandbox, attack, setup="import os") == "PermissionError"


async def test_the_interpreter_run_once_more_is_as_confined(sandbox: Sandbox) -> None:
    inner = "import os; os.listdir('/etc')"
    result = await sandbox.run(
        f"import os\nos.execv('/py/bin/python3.11', ['/py/bin/python3.11', '-I', '-S', '-c', {inner!r}])"
    )
    assert result.exit_status == 1 and "FileNotFoundError" in result.stderr


async def test_nobody_can_be_signalled(sandbox: Sandbox) -> None:
    pids = ("os.getppid()", "1", "-1", str(os.getpid()))
    outcomes = await attempts(sandbox, *(f"import os; os.kill({pid}, 9)" for pid in pids))
    assert set(outcomes.values()) == {"PermissionError"}, outcomes


async def test_the_program_is_alone_and_nobody_in_particular(sandbox: Sandbox) -> None:
    program = "import os\nprint(os.getpid(), os.getppid(), os.getuid(), os.geteuid(), os.uname().nodename)"
    assert (await sandbox.run(program)).stdout == "1 0 1000 1000 sandbox\n"


async def test_outside_the_program_runs_as_an_unprivileged_user(sandbox: Sandbox) -> None:
    limits = SandboxLimits(file_bytes=2_000_000 + os.getpid())
    run = asyncio.create_task(sandbox.run("import time\ntime.sleep(1)", limits=limits))
    users: set[int] = set()
    while not run.done():
        for process in _processes(limits):
            with contextlib.suppress(psutil.Error):
                users |= {*process.uids(), *process.gids()}
                assert set(process.environ()) <= {"PWD"}
        await asyncio.sleep(0.05)
    assert users and 0 not in users


async def test_a_new_user_namespace_is_refused(sandbox: Sandbox) -> None:
    number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
    assert await attempt(sandbox, f"call({number}, 0x10000000)", setup=CALL) == "PermissionError"
    # Nor can a thread be made in one by clone: CLONE_THREAD | CLONE_NEWNET.
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    assert await attempt(sandbox, f"call({number}, 0x40010000, 0, 0, 0, 0)", setup=CALL) == "PermissionError"


DANGEROUS = {
    "bpf": (321, 280), "ptrace": (101, 117), "mount": (165, 40), "setns": (308, 268), "chroot": (161, 51),
    "prctl": (157, 167), "keyctl": (250, 219), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "memfd_create": (319, 279), "setuid": (105, 146), "open_by_handle_at": (304, 265), "mq_open": (240, 180),
    "process_vm_readv": (310, 270), "shmget": (29, 194), "io_uring_setup": (425, 425), "mknodat": (259, 33),
    "seccomp": (317, 277), "pidfd_open": (434, 434), "execveat": (322, 281), "sendmsg": (46, 211),
}  # fmt: skip


async def test_dangerous_calls_are_refused(sandbox: Sandbox) -> None:
    column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    attacks = {name: f"call({numbers[column]}, 0, 0, 0, 0, 0)" for name, numbers in DANGEROUS.items()}
    outcomes = await attempts(sandbox, *attacks.values(), setup=CALL)
    assert {name: outcomes[attack] for name, attack in attacks.items()} == dict.fromkeys(
        attacks, "PermissionError"
    )


async def test_calls_that_the_list_does_not_know_are_refused(sandbox: Sandbox) -> None:
    program = (
        CALL
        + """
for number in (451, 470, 0x40000000 | 41, 2**31 - 1):
    try:
        call(number, 2, 1, 0)
    except OSError as e:
        print(e.errno)
"""
    )
    assert (await sandbox.run(program)).stdout == "38\n" * 4  # ENOSYS


async def test_a_terminal_cannot_be_typed_into(sandbox: Sandbox) -> None:
    assert await attempt(sandbox, "fcntl.ioctl(0, 0x5412, b'x')", setup="import fcntl") == "PermissionError"


async def test_a_setuid_file_gives_nothing(sandbox: Sandbox) -> None:
    program = """
import os, shutil
shutil.copy("/py/bin/python3.11", "/work/p")
os.chmod("/work/p", 0o6755)
shown = "import os; print(os.getresuid(), os.getresgid())"
os.execv("/work/p", ["/py/bin/python3.11", "-I", "-S", "-c", shown])
"""
    assert (await sandbox.run(program)).stdout == "(1000, 1000, 1000) (1000, 1000, 1000)\n"


async def test_the_environment_and_the_open_files_hold_nothing(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    read, write = os.pipe()
    os.set_inheritable(read, True)
    program = """
import os
print(sorted(os.environ))
def there(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
print([fd for fd in range(4096) if there(fd)])
"""
    result = await sandbox.run(Program(program, files={"a/b.py": "x = 1"}))
    os.close(read)
    os.close(write)
    assert result.stdout == "['PWD']\n[0, 1, 2]\n"


async def test_the_input_cannot_be_used_as_memory_of_the_host(sandbox: Sandbox) -> None:
    assert await attempt(sandbox, "os.ftruncate(0, 1 << 20)", setup="import os") == "PermissionError"
    assert await attempt(sandbox, "os.write(0, b'x')", setup="import os") == "PermissionError"


async def test_more_memory_than_allowed_is_a_memory_error(sandbox: Sandbox) -> None:
    assert await attempt(sandbox, "x = bytearray(1 << 30)") == "MemoryError"
    limits = SandboxLimits(memory_bytes=128 * MIB)
    assert await attempt(sandbox, "x = bytearray(128 << 20)", limits=limits) == "MemoryError"
    assert await attempt(sandbox, "x = bytearray(64 << 20)", limits=limits) == "through"


async def test_limits_cannot_be_raised(sandbox: Sandbox) -> None:
    kinds = ("AS", "CPU", "NPROC", "FSIZE", "NOFILE", "CORE")
    attacks = (f"import resource as r; r.setrlimit(r.RLIMIT_{kind}, (-1, -1))" for kind in kinds)
    outcomes = await attempts(sandbox, *attacks)
    assert set(outcomes.values()) <= {"ValueError", "PermissionError"}, outcomes


async def test_an_endless_loop_ends_at_its_processor_time(sandbox: Sandbox) -> None:
    result = await sandbox.run("while True: pass", limits=SandboxLimits(cpu_s=1))
    assert result.ended == "cpu_limit" and result.exit_status is None
    assert 0.5 < result.cpu_s < 3


async def test_one_that_ignores_signals_ends_as_well(sandbox: Sandbox) -> None:
    program = """
import signal, threading
for s in signal.valid_signals():
    try:
        signal.signal(s, signal.SIG_IGN)
    except OSError:
        pass
print("on", flush=True)
while True: pass
"""
    result = await sandbox.run(program, limits=SandboxLimits(wall_s=2.0))
    assert (result.ended, result.stdout) == ("timeout", "on\n")


async def test_a_sleeper_ends_at_the_wall_clock(sandbox: Sandbox) -> None:
    start = time.monotonic()
    result = await sandbox.run(
        "print('a', flush=True)\nimport time\ntime.sleep(60)", limits=SandboxLimits(wall_s=2.0)
    )
    assert (result.ended, result.stdout) == ("timeout", "a\n")
    assert 2.0 <= result.wall_s < 7 and time.monotonic() - start < 10


async def test_one_that_closes_its_output_is_still_watched(sandbox: Sandbox) -> None:
    program = "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)"
    assert (await sandbox.run(program, limits=SandboxLimits(wall_s=0.5))).ended == "timeout"


async def test_a_large_file_is_refused(sandbox: Sandbox) -> None:
    setup = "f = open('f', 'wb', buffering=0)"
    assert (
        await attempt(
            sandbox, "for _ in range(100): assert f.write(b'x' * (1 << 20)) == 1 << 20", setup=setup
        )
        == "OSError"
    )


async def test_a_full_disk_is_the_program_s_own(sandbox: Sandbox) -> None:
    attack = "for n in range(100):\n    with open(str(n), 'wb') as f: f.write(b'x' * (1 << 20))"
    assert await attempt(sandbox, attack, limits=SandboxLimits(disk_bytes=8 * MIB)) == "OSError"


async def test_endless_output_is_cut_and_costs_no_memory(sandbox: Sandbox) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    result = await sandbox.run("while True: print('x' * 65536)", limits=SandboxLimits(output_bytes=100_000))
    assert result.ended == "output_limit" and result.stdout_cut and not result.stderr_cut
    assert (
        result.stdout.replace("\n", "") == "x" * len(result.stdout.replace("\n", ""))
        and len(result.stdout) == 100_000
    )
    assert process.memory_info().rss - before < 16 * MIB


async def test_endless_error_output_is_cut_too(sandbox: Sandbox) -> None:
    program = "import sys\nwhile True: sys.stderr.write('x' * 65536)"
    result = await sandbox.run(program, limits=SandboxLimits(output_bytes=10))
    assert result.ended == "output_limit" and result.stderr_cut and result.stderr == "x" * 10


async def test_output_of_just_the_limit_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('x' * 9)", limits=SandboxLimits(output_bytes=10))
    assert result.succeeded and result.stdout == "x" * 9 + "\n" and not result.stdout_cut


async def test_a_bomb_of_forks_does_not_go_off(sandbox: Sandbox) -> None:
    program = """
import os
refused = 0
for _ in range(1000):
    try:
        os.fork()
    except OSError:
        refused += 1
print(refused)
"""
    assert (await sandbox.run(program)).stdout == "1000\n"


async def test_threads_are_bounded(sandbox: Sandbox) -> None:
    program = """
import threading
stop = threading.Event()
n = 0
try:
    for _ in range(1000):
        threading.Thread(target=stop.wait, daemon=True).start()
        n += 1
except RuntimeError:
    print(n)
stop.set()
"""
    assert (await sandbox.run(program, limits=SandboxLimits(processes=10))).stdout == "9\n"


async def test_two_runs_at_once_have_their_tasks_each_for_itself(sandbox: Sandbox) -> None:
    program = """
import threading, time
for _ in range(9):
    threading.Thread(target=time.sleep, args=(0.5,)).start()
print(1)
"""
    limits = SandboxLimits(processes=10)
    results = await asyncio.gather(*(sandbox.run(program, limits=limits) for _ in range(2)))
    assert [r.stdout for r in results] == ["1\n", "1\n"]


async def test_files_without_content_are_bounded_by_the_control_group(sandbox: Sandbox) -> None:
    # Inodes are the kernel's memory, which counts in no limit of the process.
    if "memory" not in sandbox.bounds:
        pytest.skip("the host offers no control group for memory; the sandbox says so in `bounds`")
    program = "import os\nfor n in range(10**7): os.symlink('x' * 100, str(n))"
    limits = SandboxLimits(memory_bytes=64 * MIB, disk_bytes=4096, cpu_s=30, wall_s=30)
    assert (await sandbox.run(program, limits=limits)).ended == "killed_memory"


async def test_a_crash_is_told_from_an_exit(sandbox: Sandbox) -> None:
    result = await sandbox.run("import ctypes\nctypes.string_at(0)")
    assert (result.ended, result.signal, result.exit_status) == ("signal", 11, None)


async def test_ordinary_programs_work(sandbox: Sandbox) -> None:
    program = """
import asyncio, bz2, collections, ctypes, dataclasses, datetime, decimal, fractions, hashlib, heapq, itertools
import json, lzma, math, pickle, queue, random, re, shutil, sqlite3, statistics, string, sys, tempfile
import threading, time, typing, unicodedata, uuid, zlib
from concurrent.futures import ThreadPoolExecutor

async def main():
    async with asyncio.timeout(5):
        return await asyncio.gather(*(asyncio.sleep(0.001, n) for n in range(3)))

@dataclasses.dataclass
class Point:
    x: "int"

assert asyncio.run(main()) == [0, 1, 2]
assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
with ThreadPoolExecutor(3) as pool:
    assert sum(pool.map(abs, range(-50, 0))) == 1275
with sqlite3.connect("/tmp/db") as db:
    assert db.execute("select 1 + 1").fetchone() == (2,)
with open("a", "w") as f:
    f.write("ä")
shutil.copy2("a", "b")
assert open("b").read() == "ä" and hashlib.sha256(b"").hexdigest()[:4] == "e3b0"
assert lzma.decompress(lzma.compress(b"x")) == b"x" and bz2.decompress(bz2.compress(b"x")) == b"x"
sys.setrecursionlimit(100_000)
def depth(n): return 0 if n == 0 else 1 + depth(n - 1)
assert depth(20_000) == 20_000
random.seed(1); time.sleep(0.001); uuid.uuid4(); tempfile.mkdtemp()
print("fine")
"""
    result = await sandbox.run(program)
    assert (result.stdout, result.stderr) == ("fine\n", "")


async def test_packages_of_the_host_are_not_there(sandbox: Sandbox) -> None:
    setup = "import os, sys\nsys.path += [p for p, _, _ in os.walk('/py') if p.endswith('-packages')]"
    for name in ("pytest", "pip", "numpy"):
        assert await attempt(sandbox, f"import {name}", setup=setup) == "ModuleNotFoundError"


async def test_further_files_can_be_imported(sandbox: Sandbox) -> None:
    program = Program("from a.b import x\nprint(x, __name__, __file__)", files={"a/b.py": "x = 7"})
    assert (await sandbox.run(program)).stdout == "7 __main__ /main.py\n"


async def test_linked_programs_talk_to_each_other_alone(sandbox: Sandbox) -> None:
    head = "import os, sys\nr, w = map(int, sys.argv[1:])\n"
    one = head + "os.write(w, b'ping')\nprint(os.read(r, 9), os.read(r, 9))"
    two = head + "print(os.read(r, 9))\nos.write(w, b'pong')"
    first, second = await sandbox.run_linked(Program(one), Program(two))
    assert (first.stdout, second.stdout) == ("b'pong' b''\n", "b'ping'\n")


async def test_a_linked_program_that_hangs_does_not_hold_the_other(sandbox: Sandbox) -> None:
    limits = SandboxLimits(wall_s=2.0)
    first, second = await sandbox.run_linked(
        Program("import time\ntime.sleep(60)"), Program("print(1)"), limits=limits
    )
    assert (first.ended, second.stdout) == ("timeout", "1\n")


async def test_a_cancelled_run_leaves_no_process_and_no_descriptor(sandbox: Sandbox) -> None:
    await sandbox.run("pass")
    limits = SandboxLimits(file_bytes=3_000_000 + os.getpid())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    for delay in (0.0, 0.01, 0.02, 0.05, 0.3):
        run = asyncio.create_task(sandbox.run("import time\ntime.sleep(60)", limits=limits))
        await asyncio.sleep(delay)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert not psutil.Process().children(recursive=True)
    assert not _processes(limits)
    gc.collect()
    assert not complaints
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_many_runs_wait_for_their_turn(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(f"print({n})") for n in range(12)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(12)]


async def test_nothing_runs_before_the_probe_has_passed_and_after_the_close() -> None:
    sandbox = Sandbox()
    with pytest.raises(SandboxUnavailable, match="not probed"):
        await sandbox.run("pass")
    await sandbox.close()
    with pytest.raises(SandboxUnavailable, match="closed"):
        await sandbox.run("pass")
    with pytest.raises(SandboxUnavailable, match="closed"):
        await sandbox.probe()


def _processes(limits: SandboxLimits) -> list[psutil.Process]:
    """Those of runs with these limits, known by the size of files among their arguments."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(limits.file_bytes) in (process.info["cmdline"] or ())
    ]
