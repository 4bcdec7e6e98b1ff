from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest

from guards.embedded import EmbeddedStoreError, EmbeddedValkey, StoreInUse, connect_or_start
from guards.store import StoreUnavailable, connect

ROOT = Path(__file__).parents[2]

OWNER = """
import signal, sys
from pathlib import Path
from guards.embedded import EmbeddedValkey
signal.signal(signal.SIGINT, signal.SIG_IGN)
server = EmbeddedValkey(Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def start_owner(state_dir: Path) -> tuple[subprocess.Popen[str], int]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(state_dir)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def reap(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.communicate()


def ends_within(pidfd: int, seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def socket_path(url: str) -> Path:
    return Path(unquote(url.removeprefix("unix://")))


def is_there(path: Path) -> bool:
    return path.exists()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def put(url: str, key: str, value: str) -> None:
    client = connect(url)
    await client.set(key, value)
    await client.aclose()


async def look_up(url: str, key: str) -> str | bytes | None:
    client = connect(url)
    try:
        return await client.get(key)
    finally:
        await client.aclose()


async def test_data_survive_a_clean_restart(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    server.start()
    await put(server.url, "a", "1")
    server.stop()
    server.start()
    assert await look_up(server.url, "a") == "1"
    server.stop()


async def test_data_survive_a_killed_server_and_its_stale_socket_does_not_hinder(
    own_server: EmbeddedValkey,
) -> None:
    url = own_server.url
    await put(url, "a", "1")
    assert own_server.pid is not None
    kill_and_wait(own_server.pid)
    assert is_there(socket_path(url))
    own_server.start()
    assert own_server.url == url
    assert await look_up(url, "a") == "1"


def kill_and_wait(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pidfd, 5)
    os.close(pidfd)


def test_a_killed_owner_leaves_no_server(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path)
    pidfd = os.pidfd_open(pid)
    try:
        assert not ends_within(pidfd, 0)
        os.kill(owner.pid, signal.SIGKILL)
        assert ends_within(pidfd, 5)
    finally:
        os.close(pidfd)
        reap(owner)


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path)
    pidfd = os.pidfd_open(pid)
    try:
        assert os.getpgid(pid) != os.getpgid(owner.pid)
        os.killpg(os.getpgid(owner.pid), signal.SIGINT)
        assert not ends_within(pidfd, 0.1)
    finally:
        os.close(pidfd)
        reap(owner)


def test_a_second_process_connects_to_the_running_server_and_leaves_it_alone(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path)
    pidfd = os.pidfd_open(pid)
    try:
        handle = connect_or_start(tmp_path)
        assert not handle.owned
        handle.close()
        assert not ends_within(pidfd, 0.1)
        with pytest.raises(StoreInUse):
            EmbeddedValkey(tmp_path).start()
    finally:
        os.close(pidfd)
        reap(owner)


async def test_the_next_starter_waits_for_a_server_that_is_going_away(tmp_path: Path) -> None:
    owner, pid = start_owner(tmp_path)
    await put(connect_or_start(tmp_path).url, "a", "1")
    os.kill(pid, signal.SIGSTOP)  # it holds the lock and does not answer
    with pytest.raises(EmbeddedStoreError, match="does not answer"):
        connect_or_start(tmp_path, timeout_s=0.2)
    os.kill(owner.pid, signal.SIGKILL)
    timer = threading.Timer(0.2, os.kill, (pid, signal.SIGCONT))
    timer.start()
    handle = connect_or_start(tmp_path, timeout_s=5)
    assert handle.owned
    assert await look_up(handle.url, "a") == "1"
    handle.close()
    timer.join()
    reap(owner)


def test_of_many_starters_at_once_exactly_one_owns_the_server(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        handles = list(threads.map(lambda _: connect_or_start(tmp_path), range(8)))
    assert sum(handle.owned for handle in handles) == 1
    assert len({handle.url for handle in handles}) == 1
    for handle in handles:
        handle.close()


async def test_a_server_started_from_a_thread_outlives_that_thread(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    assert not ends_within(pidfd, 0.2)
    os.close(pidfd)
    await put(server.url, "a", "1")
    server.stop()


async def test_a_long_state_dir_gets_a_short_private_socket(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 120)
    server = EmbeddedValkey(state)
    server.start()
    path = socket_path(server.url)
    assert len(os.fsencode(path)) <= 107
    assert mode(path.parent) == 0o700
    assert connect_or_start(state).url == server.url
    await put(server.url, "a", "1")
    url, pid = server.url, server.pid
    assert pid is not None
    kill_and_wait(pid)
    server.start()
    assert server.url == url  # clients find it again after a crash
    server.stop()
    assert not is_there(path)
    path.parent.rmdir()


async def test_it_is_private_has_no_port_and_never_evicts(tmp_path: Path) -> None:
    state = tmp_path / "with space & %20"
    (state / "valkey").mkdir(parents=True, mode=0o755)
    handle = connect_or_start(state, max_memory_mb=64)
    path = socket_path(handle.url)
    assert mode(path) == 0o700
    assert mode(path.parent) == 0o700
    client = connect(handle.url)
    config = await client.config_get("*")
    assert config["port"] == "0"
    assert config["maxmemory"] == str(64 * 2**20)
    assert config["maxmemory-policy"] == "noeviction"
    assert config["appendonly"] == "yes"
    await client.aclose()
    handle.close()
    handle.close()
    assert not is_there(path)


async def test_who_outlives_the_owner_can_start_the_server_again_under_the_same_url(tmp_path: Path) -> None:
    owner, guest = connect_or_start(tmp_path), connect_or_start(tmp_path)
    client = connect(guest.url)
    await client.set("a", "1")
    owner.close()
    with pytest.raises(StoreUnavailable):
        await client.get("a")
    guest.revive()
    guest.revive()
    assert guest.owned and not owner.owned
    assert await client.get("a") == "1"
    await client.aclose()
    guest.close()


def test_stop_does_not_remove_the_socket_of_a_server_that_took_over(tmp_path: Path) -> None:
    first = EmbeddedValkey(tmp_path)
    first.start()
    assert first.pid is not None
    kill_and_wait(first.pid)
    second = connect_or_start(tmp_path)
    assert second.owned
    first.stop()
    third = connect_or_start(tmp_path)
    assert not third.owned
    second.close()


def test_a_server_that_cannot_start_says_why_and_releases_the_lock(tmp_path: Path) -> None:
    broken = tmp_path / "valkey" / "appendonlydir"
    broken.mkdir(parents=True)
    manifest = broken / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")
    server = EmbeddedValkey(tmp_path)
    with pytest.raises(EmbeddedStoreError, match="AOF"):
        server.start()
    manifest.unlink()
    server.start()
    server.stop()


def test_the_url_of_a_server_that_is_not_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedStoreError):
        _ = EmbeddedValkey(tmp_path).url
