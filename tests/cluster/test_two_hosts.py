"""Two hosts with a network: namespaces on this machine, joined by a virtual cable, with
MPI over TCP.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from zygote import Zygote

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PATIENCE = 150  # seconds, on a loaded machine
HANG_AFTER = 10  # seconds; a first step takes several on a loaded machine
ROUNDS = 12
EXPERIMENT = f"""
rounds = {ROUNDS}
[partition]
clients = 6
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
[method]
name = "methods_for_jobs:Slow"
pause = 0.2
[checkpoint]
every = 1
[runtime]
hang_after = {HANG_AFTER}
"""


@dataclass
class Network:
    """Namespaces ``name``0 and ``name``1 with the addresses 10.213.0.1 and 10.213.0.2.

    programs: folder with ``enter``, which is called like ssh, and with a ``python``
    that is forked from the zygote and enters the namespace of its caller. folder:
    folder of the experiment.
    """

    name: str
    programs: Path
    folder: Path

    def start(self, out: str) -> subprocess.Popen:
        """Start the experiment with two ranks on each host; its output is written to a
        file.
        """
        with open(self.folder / f"{out}.log", "w") as log:
            return subprocess.Popen(
                [
                    *f"ip netns exec {self.name}0".split(),
                    *[MPIEXEC, "-launcher", "ssh"],
                    *["-launcher-exec", self.programs / "enter"],
                    *["-hosts", "10.213.0.1:2,10.213.0.2:2"],
                    *[self.programs / "python", "-u", "-m", "hpcfl"],
                    *["run", "e.toml", "--out", out],
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env={**os.environ, "UCX_TLS": "tcp,self"},
            )

    def finish_on_one_host(self, out: str) -> str:
        """Return the digest of the experiment, started or continued by one process."""
        (self.folder / "slow").unlink(missing_ok=True)
        command = [self.programs / "python", "-m", "hpcfl", "run", "e.toml"]
        subprocess.run(
            [*f"ip netns exec {self.name}0".split(), *command, "--out", out],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        return self.digest(out)

    def digest(self, out: str) -> str:
        path = self.folder / out / "checkpoints" / f"manifest-{ROUNDS:08}.json"
        return json.loads(path.read_text())["manifest"]["digest"]

    def wait_for_round(self, number: int):
        deadline = time.monotonic() + PATIENCE
        while not any(self.folder.glob(f"out/checkpoints/manifest-*{number}.json")):
            assert time.monotonic() < deadline, self.read_output("out")
            time.sleep(0.1)

    def read_output(self, out: str) -> str:
        return (self.folder / f"{out}.log").read_text()

    def bytes_over_the_cable(self) -> int:
        line = f"{self.name}0 cat /sys/class/net/cable0/statistics/tx_bytes"
        return int(_inside(line))

    def cut(self):
        _inside(f"{self.name}1 ip link set cable1 down")


def _ip(line: str) -> str:
    """Return the output of a command of ip."""
    return subprocess.run(
        ["ip", *line.split()], check=True, capture_output=True, text=True
    ).stdout


def _inside(line: str) -> str:
    """Return the output of ``NAMESPACE COMMAND …``."""
    return _ip(f"netns exec {line}")


ENTER = """#!/bin/bash
# Called like ssh: enter [-x] ADDRESS COMMAND; the namespace is the address's last digit less one.
[ "$1" = -x ] && shift
host=$1; shift
exec ip netns exec {name}$((${{host##*.}} - 1)) bash -c "$*"
"""
PYTHON = """#!/bin/bash
HPCFL_HOST=$$ exec {python} "$@"
"""


@pytest.fixture(scope="module")
def hosts(
    tmp_path_factory: pytest.TempPathFactory, zygote: Zygote
) -> Iterator[Network]:
    """Return the two hosts."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    name, folder = f"hpcfl{os.getpid()}-", tmp_path_factory.mktemp("hosts")
    for program, text in (("enter", ENTER), ("python", PYTHON)):
        (folder / program).write_text(text.format(name=name, python=zygote.python))
        (folder / program).chmod(0o755)
    try:
        _connect(name)
        yield Network(name, folder, folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for host in range(2):
            subprocess.run(
                ["ip", "netns", "delete", f"{name}{host}"], capture_output=True
            )


def _connect(name: str):
    """Make the namespaces and connect them by a cable."""
    _ip(f"netns add {name}0")
    _ip(f"netns add {name}1")
    ends = f"cable0 netns {name}0 type veth peer name cable1 netns {name}1"
    _ip(f"link add {ends}")
    for host in range(2):
        ip = f"{name}{host} ip"
        _inside(f"{ip} address add 10.213.0.{host + 1}/24 dev cable{host}")
        _inside(f"{ip} link set cable{host} up")
        _inside(f"{ip} link set lo up")


@pytest.fixture
def network(hosts: Network, tmp_path: Path) -> Network:
    """Return the hosts with a working cable; ``slow`` makes a run last until the fault."""
    _inside(f"{hosts.name}1 ip link set cable1 up")
    while _inside(f"{hosts.name}1 cat /sys/class/net/cable1/operstate") != "up\n":
        time.sleep(0.1)
    shutil.copy(Path(__file__).with_name("methods_for_jobs.py"), tmp_path)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    return replace(hosts, folder=tmp_path)


def test_same_digest_over_tcp(network):
    before = network.bytes_over_the_cable()
    assert network.start("out").wait(PATIENCE) == 0, network.read_output("out")
    assert (
        network.bytes_over_the_cable() - before > ROUNDS * 4000
    )  # the models were really sent
    assert network.digest("out") == network.finish_on_one_host("plain")


@pytest.mark.parametrize("fault", ["the link is cut", "a far rank is killed"])
def test_a_lost_host_ends_the_job(network, fault):
    """All ranks end soon, and the run continues on one host."""
    (network.folder / "slow").touch()
    process = network.start("out")
    network.wait_for_round(3)
    if fault == "the link is cut":
        network.cut()
    else:
        os.kill(
            int(
                re.search(
                    r"rank 3 on \S+ \(pid (\d+)", network.read_output("out")
                ).group(1)
            ),
            signal.SIGKILL,
        )
    begun = time.monotonic()
    assert process.wait(PATIENCE) != 0
    assert time.monotonic() - begun < HANG_AFTER + 30
    assert network.finish_on_one_host("out") == network.finish_on_one_host("plain")
