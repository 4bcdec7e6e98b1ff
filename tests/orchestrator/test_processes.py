from __future__ import annotations

import subprocess
import sys
import textwrap


def run(code: str) -> str:
    """Run a script in a process of its own, since adopting orphans changes a process for good."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_orphans_come_to_us_and_are_ended_also_when_they_ignore_the_first_signal() -> None:
    out = run(
        """
        import subprocess, sys, time, psutil
        from orchestrator.processes import adopt_orphans, descendants, end_descendants

        adopt_orphans()
        stubborn = (
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
            "print('up', flush=True); time.sleep(60)"
        )
        middle = f'''
        import subprocess, sys
        p = subprocess.Popen(
            [sys.executable, "-c", {stubborn!r}], stdout=subprocess.PIPE, start_new_session=True
        )
        p.stdout.readline()
        print(p.pid, flush=True)
        '''
        import textwrap
        pid = int(subprocess.check_output([sys.executable, "-c", textwrap.dedent(middle)]))
        assert [p.pid for p in descendants()] == [pid], "the orphan is ours"
        assert descendants(spare=[pid]) == []
        assert end_descendants(grace_s=0.3) == 1
        assert not psutil.pid_exists(pid), "and it is collected"
        print("ok")
        """
    )
    assert out == "ok"


def test_spared_processes_live_on() -> None:
    out = run(
        """
        import subprocess, sys
        from orchestrator.processes import adopt_orphans, end_descendants

        adopt_orphans()
        code = "import time; time.sleep(60)"
        spared, other = (subprocess.Popen([sys.executable, "-c", code]) for _ in range(2))
        assert end_descendants(spare=[spared.pid], grace_s=1) == 1
        assert spared.poll() is None
        spared.kill()
        spared.wait()
        print("ok")
        """
    )
    assert out == "ok"
