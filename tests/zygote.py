"""A process that has imported all modules and forks the processes of jobs, each of
which then starts in milliseconds.

``shim.py`` sends it requests over a socket; ``python`` and ``hpcfl`` in its folder of
programs start ``shim.py``. The zygote initialises no MPI and makes no tensor, so a
forked process is like a newly started one. It is killed with its shim, as launchers do.
Python processes that a forked process starts are forked as well. If ``HPCFL_JOB`` names
a folder, a forked process writes its pid to the file ``rank-N`` in it.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

TESTS = Path(__file__).parent
PATHS = os.pathsep.join([str(TESTS.parent), str(TESTS)])
IMPORTED = (
    "hpcfl.cli",
    "hpcfl.commands.experiments",
    "hpcfl.api",
    "hpcfl.report.tables",
    "hpcfl.cluster.status",
    "hpcfl.cluster.submission",
    "hpcfl.report.catalogue",
    "hpcfl.report.sweep_table",
    "hpcfl.report.figures",
    "submitit.core._submit",
    "hpcfl.report.progress",
    "tiny",  # with the contract of methods, models and data sets
    "sklearn.datasets",
    "torch.func",
    "sympy",
    "torch._decomp.decompositions",
    "torch.fx.experimental.symbolic_shapes",
    "torch._functorch.apis",
    "torch._dynamo",  # used by every first check of a step's operators
    "mpi4py",
    "importlib.readers",
    "importlib.resources.readers",
    "importlib.resources._itertools",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "rich.live",
    "rich.progress",
)
HIGH = 500  # first descriptor that no process uses
M_PERTURB = -6  # of glibc's mallopt
NO_CACHE = "glibc.malloc.tcache_count=0"  # memory that M_PERTURB does not affect


class Zygote:
    """Context manager of the process.

    Attributes:
        programs: folder with a ``python`` and an ``hpcfl`` that are forked from it.
        folder: folder for files of the jobs.
    """

    def __init__(self, folder: Path):
        self.folder, self.programs = folder, folder / "bin"
        self.python = self.programs / "python"

    def __enter__(self) -> "Zygote":
        self.start(subprocess.PIPE)
        return self

    def __exit__(self, *_: object):
        self._process.communicate()  # it ends with its input

    def start(self, life):
        """Start the process, which ends with its input, ``life``, and wait until it is
        ready.
        """
        address = self.folder / "zygote"
        shim = shlex.join(
            map(str, [sys.executable, "-S", "-E", TESTS / "shim.py", address])
        )
        self.programs.mkdir()
        for program, arguments in (("python", ""), ("hpcfl", "-m hpcfl ")):
            (self.programs / program).write_text(
                f'#!/bin/sh\nexec {shim} {arguments}"$@"\n'
            )
            (self.programs / program).chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, TESTS / "zygote.py", address, self.python],
            stdin=life,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": PATHS, "GLIBC_TUNABLES": NO_CACHE},
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    @property
    def path(self) -> str:
        """Return a PATH with its programs first, and then those of this Python's
        environment.
        """
        return os.pathsep.join(
            map(str, [self.programs, Path(sys.executable).parent, os.environ["PATH"]])
        )


@functools.cache
def share(folder: Path) -> Zygote:
    """Return the zygote of all processes that name this folder; the first one starts
    it. It ends with the last process that can write to the pipe ``life`` in the folder.
    """
    zygote = Zygote(folder)
    with FileLock(folder / "lock"):
        if not zygote.programs.exists():
            with open(folder / "life") as life:
                zygote.start(life)
    return zygote


class Nursery:
    """Loop of the zygote, with a socket for every living process and a descriptor that
    shows its end.
    """

    def __init__(self, address: str):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        os.chmod(address, 0o777)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._end)
        self._children: dict[int, int] = {}  # pid → descriptor
        self._born: tuple[dict[str, Any], list[int]] | None = None

    def wait(self) -> tuple[dict[str, Any], list[int]]:
        """Fork on every request. Return only in the forked processes, with the request
        and its descriptors.
        """
        while self._born is None:
            for key, _ in self._selector.select():
                # An event received earlier may have closed the object of this key.
                if self._born is None and self._selector.get_map().get(key.fd) is key:
                    key.data(key.fileobj)
        return self._born

    def _end(self, stdin):
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    def _accept(self, listener: socket.socket):
        connection, _ = listener.accept()
        message, received, _, _ = socket.recv_fds(connection, 1 << 20, 8)
        if not message:
            return connection.close()
        pid = os.fork()
        if pid == 0:
            self._born = json.loads(message), received
            return self._forget(connection)
        for descriptor in received:
            os.close(descriptor)
        self._raise_child(connection, pid)

    def _raise_child(self, connection: socket.socket, pid: int):
        """Send the pid to the shim, and later the end of the process; runs in the
        zygote.
        """
        watched = self._children[pid] = os.pidfd_open(pid)
        self._selector.register(
            connection, selectors.EVENT_READ, lambda _: self._shim_died(connection, pid)
        )
        self._selector.register(
            watched, selectors.EVENT_READ, lambda _: self._ended(connection, pid)
        )
        _send_number(connection, pid)

    def _shim_died(self, connection: socket.socket, pid: int):
        self._selector.unregister(connection)
        os.kill(pid, signal.SIGKILL)

    def _ended(self, connection: socket.socket, pid: int):
        _, status = os.waitpid(pid, 0)
        watched = self._children.pop(pid)
        self._selector.unregister(watched)
        os.close(watched)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
            _send_number(connection, status)
        connection.close()

    def _forget(self, connection: socket.socket):
        """Close the zygote's descriptors in a forked process."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not sys.stdin:
                os.close(key.fd)
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.detach()
        self._selector.close()
        connection.close()


def _send_number(connection: socket.socket, number: int):
    with suppress(
        BrokenPipeError, ConnectionResetError
    ):  # it was just killed; its end is reported
        connection.send(str(number).encode())


def become(request: dict[str, Any], received: list[int]):
    """Turn this forked process into the process that the shim represents."""
    raised = [
        os.dup2(descriptor, HIGH + position)
        for position, descriptor in enumerate(received)
    ]
    for descriptor in received:
        os.close(descriptor)
    for source, target in zip(raised, request["descriptors"], strict=True):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["environment"])
    if "HPCFL_HOST" in os.environ:
        enter_namespaces(os.environ.pop("HPCFL_HOST"))
    os.chdir(request["folder"])
    tempfile.tempdir = None  # this environment may name another
    if "PMI_FD" in os.environ and "SLURM_PROCID" in os.environ:
        # MPICH sends Slurm uninitialised bytes, and Slurm refuses the rank unless they
        # are zero, as in a new process. With 255 all memory of malloc is zero.
        ctypes.CDLL(None).mallopt(M_PERTURB, 255)
    if "HPCFL_JOB" in os.environ:
        # as MPICH and Open MPI report it
        number = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK")
        rank = Path(os.environ["HPCFL_JOB"], f"rank-{number or 0}")
        rank.with_suffix(".new").write_text(str(os.getpid()))
        rank.with_suffix(".new").rename(rank)


def enter_namespaces(pid: str):
    """Enter the network and the file systems of a process."""
    libc = ctypes.CDLL(None)
    for kind in ("net", "mnt"):
        with open(f"/proc/{pid}/ns/{kind}") as namespace:
            assert libc.setns(namespace.fileno(), 0) == 0


def play(program: str, *arguments: str):
    """Run ``python PROGRAM ARGUMENTS`` with unbuffered output, where the program is a
    file, ``-m`` with a module or ``-c`` with a text, possibly after ``-u``.
    """
    if program == "-u":
        sys.stdout.reconfigure(write_through=True, line_buffering=True)  # type: ignore[union-attr]
        play(*arguments)
    elif program == "-m":
        sys.argv = list(arguments)
        if not hasattr(sys.modules.get(arguments[0]), "__path__"):
            # runpy warns about modules that are already imported
            sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.argv = list(arguments)
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [program, *arguments]
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")


def report(error: BaseException):
    """Report an uncaught exception as Python does, and return the exit code."""
    sys.last_value = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return leaving.code or 0
    return 1


def depart(code: int):
    """Exit as Python does, but without unloading modules and libraries (0.4 s in a
    forked process).
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # MPI reports the end to mpiexec in an exit hook of C. Other threads of Python must
    # not continue meanwhile, so ``exit`` is called with the interpreter's lock.
    ctypes.PyDLL(None).exit(code)


def main():
    for name in IMPORTED:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # costs time later, changes no result
    gc.collect()
    # otherwise garbage collection in every forked process copies all its memory
    gc.freeze()
    nursery = Nursery(sys.argv[1])
    sys.executable = sys.argv[2]
    print("ready", flush=True)
    request, received = nursery.wait()
    become(request, received)
    # C runs exit hooks from last to first: only the hooks of libraries loaded from here
    # on, such as MPI's.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    code: Any = 0
    try:
        play(*request["arguments"])
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException as error:
        code = report(error)
    depart(code)


if __name__ == "__main__":
    main()
