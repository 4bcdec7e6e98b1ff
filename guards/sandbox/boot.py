"""The first code in the sandbox: sets the limits, which cannot be raised again, and runs the program.

Arguments: the four limits that it sets, a descriptor to wait on, and those of the program.

Limits are set here and not outside, because a limit on processes set before the user namespace exists would
count those of all runs together. Nothing of the program has been read when they are set.
"""

import resource
import sys

_PROGRAM = "/main.py"


def main() -> None:
    """Run the program as `__main__`, whose only names are then its own."""
    cpu_s, memory, file, tasks, gate = map(int, sys.argv[1:6])
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, file),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_STACK, 8 << 20),
    ):
        resource.setrlimit(kind, (value, value))
    # The end of this file means that nobody watches over the program any more.
    with open(gate, "rb", buffering=0) as opened:  # noqa: PTH123
        if not opened.read(1):
            return
    sys.argv[:] = [_PROGRAM, *sys.argv[6:]]
    sys.path.append("/code")
    # pathlib would cost more than all the rest of this file.
    with open(_PROGRAM, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), _PROGRAM, "exec")
    names = globals()
    for name in [name for name in names if not name.startswith("__")]:
        del names[name]
    names.update(__file__=code.co_filename, __doc__=None)
    exec(code, names)  # noqa: S102


if __name__ == "__main__":
    main()
