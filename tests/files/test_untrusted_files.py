import errno
import hashlib
import json
import os
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from hpcfl.experiment import config
from hpcfl.files import heartbeat, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import RunFile

CONFIG = config.parse({"method": {"name": "fedavg"}}).resolved()


def plant(path, kind):
    """Create something other than a regular file at ``path``."""
    secret = path.with_name("secret")
    secret.write_bytes(b"secret")
    {
        "link": lambda: path.symlink_to(secret),
        "dangling link": lambda: path.symlink_to("nothing"),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR | os.O_CREAT])
def test_only_regular_files_are_opened(tmp_path, kind, flags):
    plant(tmp_path / "file", kind)
    with pytest.raises(Damaged) as caught:
        untrusted_files.open_descriptor(tmp_path / "file", flags)
    assert str(caught.value) and "\n" not in str(caught.value)
    assert (tmp_path / "secret").read_bytes() == b"secret"
    assert not (tmp_path / "nothing").exists()


def test_a_file_is_made_or_stays_as_it_is(tmp_path):
    for content in (b"content", b""):
        path, flags = tmp_path / "file", os.O_RDWR | os.O_CREAT
        with open(untrusted_files.open_descriptor(path, flags), "rb+") as file:
            file.write(content)
    assert untrusted_files.read_bytes(tmp_path / "file", 7) == b"content"


def test_a_missing_file_is_not_reported_as_damaged(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none", tmp_path / "file" / "below"):
        with pytest.raises(FileNotFoundError):
            untrusted_files.read_bytes(path, 1)


def test_a_file_that_another_host_replaced_is_read_again(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"new")
    opened = untrusted_files.opened

    def fail():
        monkeypatch.setattr(untrusted_files, "opened", opened)
        raise OSError(errno.ESTALE, "Stale file handle")

    @contextmanager
    def open_stale(path):
        with opened(path) as file:
            yield SimpleNamespace(fileno=file.fileno, read=fail)

    monkeypatch.setattr(untrusted_files, "opened", open_stale)
    assert untrusted_files.read_bytes(tmp_path / "file", 7) == b"new"


def test_no_more_is_read_than_allowed(tmp_path):
    os.truncate(os.open(tmp_path / "huge", os.O_CREAT | os.O_WRONLY), 1 << 40)
    with pytest.raises(Damaged, match=r"1,099,511,627,776 bytes.* 1,048,576$"):
        untrusted_files.read_bytes(tmp_path / "huge", 1 << 20)


def test_hashing_sends_heartbeats(tmp_path, monkeypatch):
    beats = []
    monkeypatch.setattr(untrusted_files, "CHUNK", 2)
    (tmp_path / "file").write_bytes(b"12345")
    listening = heartbeat.use_listener(lambda: beats.append(1))
    with listening, untrusted_files.opened(tmp_path / "file") as file:
        assert (
            untrusted_files.compute_sha256(file) == hashlib.sha256(b"12345").hexdigest()
        )
    assert len(beats) == 3


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"\xff"',
        b"[" * 100_000,
        b'{"a":' * 400 + b"1" + b"}" * 400,
        json.dumps({"format": [], "config": CONFIG}).encode(),
    ],
)
def test_an_invalid_description_is_refused_in_one_line(tmp_path, text):
    refuse(tmp_path / "run.json", text)


def refuse(path, text):
    path.write_bytes(text)
    with pytest.raises(Damaged) as caught:
        untrusted_files.read_json(path, RunFile)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0),
        ("rounds", 3.0),
        ("rounds", 10**30),
        ("seed", float("nan")),
        ("method", {}),
        ("method", {"name": 1}),
        ("method", {"name": "a", "deep": json.loads("[" * 300 + "]" * 300)}),
        ("evaluation", {"score": [], "metric": "mean"}),
    ],
)
def test_every_invalid_value_of_a_configuration_is_refused(tmp_path, key, value):
    described = {"format": 2, "config": CONFIG | {key: value}}
    refuse(tmp_path / "run.json", json.dumps(described).encode())


def test_names_in_a_reason_are_printable():
    with pytest.raises(Damaged) as caught:
        untrusted_files.checked({"\x1b[31m" * 100: 1}, dict[str, str])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_a_duplicate_key_is_damage():
    assert untrusted_files.parsed('{"a": {"b": 1}, "b": 1}') == {"a": {"b": 1}, "b": 1}
    for text in ('{"a": 1, "a": 2}', '[{"b": {"a": 1, "c": 2, "a": 1}}]'):
        with pytest.raises(Damaged, match=r"JSON.*'a'"):
            untrusted_files.parsed(text)


@pytest.mark.parametrize(
    ("array", "place"),
    [
        ([[1.0, 2.0], [3.0, np.nan]], "[1, 1] is nan"),
        ([np.inf, np.nan], "[0] is inf"),
        ([0.0, -np.inf], "[1] is -inf"),
        ([0.0, 1e39], "[1] is 1e+39"),
        ([0.0, 3e38], ""),
        ([], ""),
        ([1, 2], ""),
    ],
)
def test_the_place_of_the_first_nonfinite_number_is_described(array, place):
    assert untrusted_files.describe_nonfinite(np.array(array)) == place
