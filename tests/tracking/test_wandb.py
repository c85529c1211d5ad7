import shutil
import struct

import pytest

from hpcfl.storage import results
from hpcfl.tracking.wandb import WeightsAndBiases

pytestmark = pytest.mark.slow
BLOCK, WHOLE, LAST = 1 << 15, 1, 4


def pieces(data):
    """Yield the records in a .wandb file, a log in LevelDB's format: blocks of 32 KiB,
    pieces with headers of 7 bytes.
    """
    at, record = 7, b""  # after the file's own header
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def history(folder):
    """Return steps and numbers of the only offline run of a folder."""
    [path] = folder.glob("offline-run-*/*.wandb")
    from wandb.proto import wandb_internal_pb2  # takes long to import

    rows = []
    for piece in pieces(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(piece)
        if record.WhichOneof("record_type") == "history":
            numbers = {
                "/".join(item.nested_key) or item.key: item.value_json
                for item in record.history.item
            }
            rows.append((int(numbers["_step"]), float(numbers["pre/weighted"])))
    return rows


def test_an_offline_run_has_each_round_once_also_after_an_interruption(
    interrupted, monkeypatch
):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = interrupted("wandb")
    numbers = results.read(folder).values["pre/weighted"].tolist()
    assert history(folder / "wandb") == list(zip([1, 2, 3, 4, 5], numbers, strict=True))


def test_only_a_resumed_run_continues_the_run_of_its_folder(tmp_path, monkeypatch):
    """W&B would ignore the rounds of a new run that the earlier one had logged."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    begun = []
    monkeypatch.setattr(wandb, "init", lambda **keys: begun.append(keys["id"]))
    folder = tmp_path / "run" / "wandb"
    for is_new in (True, False, True):
        if is_new:
            shutil.rmtree(folder.parent, ignore_errors=True)
            folder.parent.mkdir()
        WeightsAndBiases(folder, {"name": "first"})
    first, resumed, new = begun
    assert first == resumed != new
