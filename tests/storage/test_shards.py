"""Files of private state."""

import torch

from hpcfl.storage import shards
from hpcfl.storage.clients import ClientStore, Row


def test_a_clients_state_is_fetched_once_for_a_file(tmp_path, monkeypatch):
    """However many tensors it has: it may lie on a GPU, or in a file."""
    state = {
        name: torch.arange(4.0).view(2, 2) for name in ("model", "personal", "weights")
    }
    store = ClientStore([3, 5], {name: tensor[0] for name, tensor in state.items()})
    store.put([3, 5], state)
    rows = store.snapshot()
    assert [row.digest for row in rows.values()]  # which takes the state as well
    fetched = []
    tensors = Row.tensors.fget
    monkeypatch.setattr(
        Row, "tensors", property(lambda row: fetched.append(row) or tensors(row))
    )
    shard = shards.write_clients(tmp_path, [3, 5], rows)
    assert fetched == list(rows.values())
    read = shards.read(tmp_path / shard.name, None)
    assert all(torch.equal(read[name], tensor) for name, tensor in state.items())
