import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys

import pytest
from refusals import expect_refusal

from hpcfl.storage import lock
from hpcfl.storage.lock import FolderLock

HOLDER = """
import sys, time
from hpcfl.storage.lock import FolderLock
with FolderLock(sys.argv[1]) as lock:
    lock.sign()
    print("taken", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.3)


@pytest.fixture
def holder(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path],
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout.readline() == b"taken\n"
        yield process
        process.kill()


def test_taken_folder_names_its_owner(tmp_path, impatient, holder):
    with expect_refusal() as caught, FolderLock(tmp_path):
        pass
    assert f"host {socket.gethostname()}, pid {holder.pid}, since 20" in str(
        caught.value
    )


def test_a_killed_owner_frees_the_folder(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    with FolderLock(tmp_path):
        pass


def test_the_lock_file_of_a_dead_owner_blocks_nothing(tmp_path):
    (tmp_path / lock.NAME).write_text(
        "host elsewhere, pid 1, since 2020-01-01 00:00:00"
    )
    assert not lock.is_held(tmp_path)
    with FolderLock(tmp_path) as ours:
        ours.sign()
        assert lock.is_held(tmp_path)
        assert f"host {socket.gethostname()}" in (tmp_path / lock.NAME).read_text()


def test_a_file_with_a_second_name_elsewhere_stays_as_it_is(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("another program's")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / lock.NAME).hardlink_to(elsewhere)
    with FolderLock(folder) as own:
        own.sign()
    assert elsewhere.read_text() == "another program's"


def test_a_folder_moved_aside_does_not_lock_its_successor(tmp_path, impatient):
    folder = tmp_path / "run"
    folder.mkdir()
    with FolderLock(folder):
        folder.rename(tmp_path / "old")
        folder.mkdir()
        with FolderLock(folder):
            pass


def test_file_system_without_locks(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        expect_refusal(rf"^{tmp_path}: .*\(flock: .*--out"),
        FolderLock(tmp_path),
    ):
        pass
