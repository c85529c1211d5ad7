"""A real process that writes without pause is killed at random moments and restarted."""

import os
import random
import signal
import subprocess
import time

import killed_writer
import pytest
import torch

from hpcfl.storage import results
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.clients import ClientStore, digest_run, digest_tensors

KILLS = 15


@pytest.fixture
def writer(zygote):
    with subprocess.Popen(
        [zygote.python, killed_writer.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        yield process
        process.stdin.close()


def run_and_kill(writer, folder, seconds):
    """Let the run continue for the given time; return the last round that it reported
    as committed, 0 for none.
    """
    writer.stdin.write(f"{folder}\n".encode())
    process = int(writer.stdout.readline())
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return max(
        map(int, iter(lambda: writer.stdout.readline().strip(), b"killed")), default=0
    )


@pytest.mark.slow
def test_kill_at_any_moment(tmp_path, writer, alone):
    randomness, committed = random.Random(0), 0
    for _ in range(KILLS):
        longest = (
            0.1 if committed else 1.0
        )  # seconds; on a busy machine the first commit may take long
        committed = max(
            committed, run_and_kill(writer, tmp_path, randomness.uniform(0, longest))
        )
        clients = ClientStore(range(killed_writer.CLIENTS), killed_writer.TEMPLATE)
        restored = Checkpoints(tmp_path / "checkpoints", alone).restore(clients)
        if restored is None and not committed:
            continue  # killed before the first commit
        assert (
            committed <= restored.round <= committed + 1
        )  # killed between a commit and its report
        committed = restored.round
        assert not restored.notes
        server, rows = killed_writer.state(restored.round)
        for name, tensor in server.items():
            assert torch.equal(restored.server[name], tensor)
        assert torch.equal(clients.get(clients.ids)["row"], rows["row"])
        assert restored.digest == digest_run(
            digest_tensors(server),
            [clients.snapshot().digests],
        )
        recorded = results.read(tmp_path)
        assert (
            recorded.rounds.tolist()
            == recorded.values["round"].tolist()
            == list(range(1, len(recorded.rounds) + 1))
        )
        assert recorded.rounds[-1] >= restored.round and not recorded.notes
    assert committed
