"""Private state of clients stays on the device if it fits, and is otherwise copied
page-locked.
"""

import pytest
import torch

from hpcfl.clients.lane_memory import STATE_SHARE
from hpcfl.rows import mixing
from hpcfl.simulation import prepare
from hpcfl.storage.clients import ClientStore

ROW = {"row": torch.zeros(4), "steps": torch.tensor(7)}
SIZE = 4 * 4 + 8


def state(*values):
    """Return the state of clients, one value each, on the device."""
    return {
        "row": torch.tensor(values, dtype=torch.float32)[:, None]
        .repeat(1, 4)
        .to("cuda"),
        "steps": torch.tensor(values, dtype=torch.int64).to("cuda"),
    }


def same(found, *values):
    return found["row"][:, 0].tolist() == list(values) and found[
        "steps"
    ].tolist() == list(values)


def test_rows_that_fit_are_not_copied(gpu):
    store = ClientStore(range(3), ROW, gpu_memory=2 * SIZE)
    store.put([0, 2], state(1, 2))
    gpu.ledger.clear()
    found = store.get([2, 0], torch.device("cuda"))
    assert not gpu.ledger.copies and found["row"].is_cuda and same(found, 2, 1)
    store.put([2, 0], found)
    assert not [copy for copy in gpu.ledger.copies if copy.line.startswith("storage")]


def test_rows_that_do_not_fit_go_to_memory(gpu):
    store = ClientStore(range(4), ROW, gpu_memory=2 * SIZE)
    for client in range(3):
        store.put([client], state(client + 1))
    assert [row.on_gpu for row in store.snapshot().written.values()] == [
        True,
        True,
        False,
    ]
    store.put([0, 1, 2], state(4, 5, 6))  # too many for the device: none of them stays
    assert not any(row.on_gpu for row in store.snapshot().written.values())
    store.put([3], state(8))
    assert same(store.get([3, 1, 0, 2], torch.device("cuda")), 8, 5, 4, 6)
    assert all(
        copy.pinned
        for copy in gpu.ledger.copies
        if copy.line.startswith(("storage", "rows"))
    )
    assert same(store.get([1, 3]), 5, 8)


def test_later_changes_do_not_affect_a_snapshot(gpu):
    store = ClientStore([0], ROW, gpu_memory=SIZE)
    store.put([0], state(1))
    [row] = store.snapshot().written.values()
    store.put([0], state(2))
    assert row.tensors["row"].tolist() == [1.0] * 4 and not row.tensors["row"].is_cuda
    assert row.digest == on_the_cpu(1).digest


def on_the_cpu(value):
    """Return the row of a client whose state was stored from the CPU."""
    store = ClientStore([0], ROW)
    store.put([0], {name: tensor.cpu() for name, tensor in state(value).items()})
    return store.snapshot().written[0]


@pytest.mark.parametrize("share", [STATE_SHARE, 0])
def test_a_federation_moves_no_private_state_while_it_fits(on_gpu, monkeypatch, share):
    monkeypatch.setattr(prepare, "STATE_SHARE", share)
    moved, stacked = [], mixing.stack_on_device

    def watched(rows, device):
        if device.type == "cuda" and not all(row.is_cuda for row in rows):
            moved.append(len(rows))
        return stacked(rows, device)

    monkeypatch.setattr(mixing, "stack_on_device", watched)
    on_gpu("ditto", rounds=3)
    # the common initial state; otherwise once in each round and for the last scores
    assert moved == ([5] if share else [5, 5, 5, 5])
