"""The cache of decoded data where somebody else may have put things, and where other
ranks are busy.
"""

import fcntl
import os
import threading

import numpy as np
import pytest

from hpcfl.data import cache
from hpcfl.files import heartbeat

NAME = "decoded.npy"
RECORD = np.dtype([("image", "u1", (2,)), ("label", "i8")])


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """``kept()``: three records from the cache in ``tmp_path/data``, and how many of
    them were decoded now.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    (tmp_path / "data").mkdir()
    decoded = []

    def decode(entry):
        decoded.append(entry)
        return (entry, entry + 1), entry

    def read():
        decoded.clear()
        found = cache.kept(tmp_path / "data", NAME, RECORD, lambda: [0, 1, 2], decode)
        assert found["label"].tolist() == [0, 1, 2] and found["image"].tolist() == [
            [0, 1],
            [1, 2],
            [2, 3],
        ]
        return len(decoded)

    return read


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "secret").write_text("not to be touched")
    return tmp_path / "secret"


def test_decoded_once(kept):
    assert [kept(), kept()] == [3, 0]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("planted", [f".{NAME}.lock", NAME, f"{NAME}.sha256"])
@pytest.mark.parametrize(
    "plant",
    [
        lambda path, secret: path.symlink_to(secret),
        lambda path, secret: os.mkfifo(path),
    ],
)
def test_nothing_is_written_or_read_through_what_is_planted(
    kept, tmp_path, secret, planted, plant
):
    plant(tmp_path / "data" / planted, secret)
    assert [kept(), kept()] == [3, 0]
    assert secret.read_text() == "not to be touched"


def test_a_cache_reached_through_a_link_is_not_used(kept, tmp_path):
    kept()
    os.rename(tmp_path / "data" / NAME, tmp_path / "elsewhere")
    (tmp_path / "data" / NAME).symlink_to(tmp_path / "elsewhere")
    assert kept() == 3


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3),
        np.zeros((3, 1), RECORD),
        np.array([{"a": 1}], object),
        np.zeros(3, [("image", "u1", (3,)), ("label", "i8")]),
    ],
)
def test_a_cache_of_something_else_is_written_anew(kept, tmp_path, array):
    kept()
    path = tmp_path / "data" / NAME
    np.save(path, array)
    digest = cache.hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "data" / f"{NAME}.sha256").write_text(f"{digest}  {NAME}\n")
    assert [kept(), kept()] == [3, 0]


def test_a_rank_that_waits_or_decodes_is_alive(kept, tmp_path, monkeypatch):
    """Another rank has the lock until this one has said three times that it is alive;
    then each entry is a sign.
    """
    lock = os.open(tmp_path / "data" / f".{NAME}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    beats = []

    def beat():
        beats.append(threading.current_thread())
        if len(beats) == 3:
            os.close(lock)

    monkeypatch.setattr(cache, "PAUSE", 0.01)
    monkeypatch.setattr(heartbeat, "_listener", beat)
    assert kept() == 3
    assert len(beats) >= 6 and set(beats) == {threading.main_thread()}
