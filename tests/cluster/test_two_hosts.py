"""Two hosts with a network between them: namespaces on this machine, joined by a virtual cable,
MPI over TCP."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

MPIEXEC = Path(sys.executable).with_name("mpiexec")
PATIENCE = 150  # seconds, on a loaded machine
HANG_AFTER = 6  # seconds
EXPERIMENT = f"""
rounds = 25
[partition]
clients = 6
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
[method]
name = "methods_for_jobs:Slow"
pause = 0.0
[checkpoint]
every = 1
[runtime]
hang_after = {HANG_AFTER}
"""


@dataclass
class Network:
    """Namespaces ``name``0 and ``name``1 with the addresses 10.213.0.1 and 10.213.0.2."""

    name: str
    folder: Path

    def start(self, out: str, pause: float) -> subprocess.Popen:
        """The experiment with two ranks on each host; its output goes to a file."""
        with open(self.folder / f"{out}.log", "w") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", f"{self.name}0", MPIEXEC, "-launcher", "ssh", "-launcher-exec",
                 self.folder / "enter", "-hosts", "10.213.0.1:2,10.213.0.2:2", sys.executable,
                 "-m", "hpcfl", "run", "e.toml", "--out", out, "--set", f"method.pause={pause}"],
                stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                env={**os.environ, "UCX_TLS": "tcp,self"})

    def wait_for_round(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while not any(self.folder.glob(f"out/checkpoints/manifest-*{number}.json")):
            assert time.monotonic() < deadline, self.said("out")
            time.sleep(0.1)

    def said(self, out: str) -> str:
        return (self.folder / f"{out}.log").read_text()

    def bytes_over_the_cable(self) -> int:
        return int(_inside(f"{self.name}0", "cat", "/sys/class/net/cable0/statistics/tx_bytes"))

    def cut(self) -> None:
        _inside(f"{self.name}1", "ip", "link", "set", "cable1", "down")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _inside(name: str, *command: str) -> str:
    """What a command in a namespace says."""
    return _ip("netns", "exec", name, *command)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    name = f"hpcfl{os.getpid()}-"
    try:
        _ip("netns", "add", f"{name}0")
        _ip("netns", "add", f"{name}1")
        _ip("link", "add", "cable0", "netns", f"{name}0", "type", "veth", "peer", "name", "cable1",
            "netns", f"{name}1")
        for host in range(2):
            inside = ("netns", "exec", f"{name}{host}", "ip")
            _ip(*inside, "address", "add", f"10.213.0.{host + 1}/24", "dev", f"cable{host}")
            _ip(*inside, "link", "set", f"cable{host}", "up")
            _ip(*inside, "link", "set", "lo", "up")
        while _inside(f"{name}1", "cat", "/sys/class/net/cable1/operstate") != "up\n":
            time.sleep(0.1)
        (tmp_path / "enter").write_text("#!/bin/bash\n# Called like ssh: enter [-x] ADDRESS COMMAND; "
                                        "the namespace is the address's last digit less one.\n"
                                        "[ \"$1\" = -x ] && shift\nhost=$1; shift\n"
                                        f"exec ip netns exec {name}$((${{host##*.}} - 1)) bash -c \"$*\"\n")
        (tmp_path / "enter").chmod(0o755)
        shutil.copy(Path(__file__).with_name("methods_for_jobs.py"), tmp_path)
        (tmp_path / "e.toml").write_text(EXPERIMENT)
        yield Network(name, tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for host in range(2):
            pids = subprocess.run(["ip", "netns", "pids", f"{name}{host}"], capture_output=True,
                                  text=True).stdout.split()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", f"{name}{host}"], capture_output=True)


def digest(folder: Path) -> str:
    return json.loads((folder / "checkpoints" / "manifest-00000025.json").read_text())["manifest"]["digest"]


def finish_on_one_host(network: Network, out: str) -> str:
    subprocess.run([sys.executable, "-m", "hpcfl", "run", "e.toml", "--out", out, "--set",
                    f"method.pause={PAUSES[out]}"], check=True, cwd=network.folder, capture_output=True)
    return digest(network.folder / out)


PAUSES = {"plain": 0.0, "out": 0.2}


def test_same_digest_over_tcp(network):
    before = network.bytes_over_the_cable()
    assert network.start("out", 0.0).wait(PATIENCE) == 0, network.said("out")
    assert network.bytes_over_the_cable() - before > 25 * 4000  # the models really travelled
    assert digest(network.folder / "out") == finish_on_one_host(network, "plain")


@pytest.mark.parametrize("fault", ["the link is cut", "a far rank is killed"])
def test_a_lost_host_ends_the_job(network, fault):
    """All ranks are gone soon, and the run continues, here on one host."""
    process = network.start("out", PAUSES["out"])
    network.wait_for_round(3)
    if fault == "the link is cut":
        network.cut()
    else:
        os.kill(int(re.search(r"rank 3 on \S+ \(pid (\d+)", network.said("out")).group(1)), signal.SIGKILL)
    begun = time.monotonic()
    assert process.wait(PATIENCE) != 0
    assert time.monotonic() - begun < HANG_AFTER + 30
    assert finish_on_one_host(network, "out") == finish_on_one_host(network, "plain")
