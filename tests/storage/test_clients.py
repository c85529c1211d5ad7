import gc
import weakref

import numpy as np
import pytest
import torch

from hpcfl.storage import clients
from hpcfl.storage.clients import ClientDigests, ClientStore, digest_run, digest_tensors

TEMPLATE = {
    "row": torch.arange(3.0),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "double": torch.zeros(2, 2, dtype=torch.float64),
    "byte": torch.zeros(0, dtype=torch.uint8),
}


def test_untouched_clients_have_the_template():
    state = ClientStore([4, 2, 9], TEMPLATE).get([9, 2])
    for name, tensor in TEMPLATE.items():
        assert torch.equal(state[name], torch.stack([tensor, tensor]))


def test_a_template_is_copied_only_where_it_is_a_part_of_a_larger_tensor():
    model = torch.arange(10.0)
    template = ClientStore([0], {"whole": model, "head": model[8:]}).template
    assert template["whole"].data_ptr() == model.data_ptr()
    assert template["head"].untyped_storage().nbytes() == 8
    assert template["head"].tolist() == [8, 9]


def test_put_then_get_keeps_order_and_bits():
    store = ClientStore([1, 2, 3], {"row": torch.zeros(2)})
    rows = torch.tensor([[float("nan"), -0.0], [1e-45, float("inf")]])
    store.put([3, 1], {"row": rows})
    assert torch.equal(
        store.get([1, 2, 3])["row"].view(torch.int32),
        torch.stack([rows[1], torch.zeros(2), rows[0]]).view(torch.int32),
    )


def test_get_and_put_copy():
    store = ClientStore([0], {"row": torch.zeros(2)})
    given = torch.ones(1, 2)
    store.put([0], {"row": given})
    given.fill_(5)
    store.get([0])["row"].fill_(6)
    assert torch.equal(store.get([0])["row"], torch.ones(1, 2))


def test_snapshot_is_of_its_moment_and_free():
    store = ClientStore(range(10_000), {"row": torch.zeros(1_000_000)})
    before = store.snapshot()
    store.put([5], {"row": torch.ones(1, 1_000_000)})
    assert not before.written and list(store.snapshot().written) == [5]


def test_digest_changes_with_the_client_only():
    store = ClientStore([0, 1], {"row": torch.zeros(2)})
    store.put([0, 1], {"row": torch.ones(2, 2)})
    before = store.snapshot().written
    store.put([0], {"row": torch.zeros(1, 2)})
    after = store.snapshot().written
    assert before[1] is after[1]
    assert before[0].digest == before[1].digest != after[0].digest
    assert after[0].digest == digest_tensors({"row": torch.zeros(2)})


def test_no_clients_and_no_state():
    empty = ClientStore([], TEMPLATE)
    empty.put([], empty.get([]))
    assert empty.get([])["double"].shape == (0, 2, 2)
    stateless = ClientStore([0], {})
    stateless.put([0], {})
    assert not stateless.snapshot().written


@pytest.mark.parametrize(
    "ids, state",
    [
        ([8], {"row": torch.zeros(1, 2)}),
        ([0], {"row": torch.zeros(1, 3)}),
        ([0], {"row": torch.zeros(2, 2)}),
        ([0], {"row": torch.zeros(1, 2, dtype=torch.float64)}),
        ([0], {}),
    ],
)
def test_put_refuses_unknown_clients_and_mismatched_state(ids, state):
    store = ClientStore([0], {"row": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"client|fleet\.state"):
        store.put(ids, state)
    assert not store.snapshot().written


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int64)},
        {"a": -torch.zeros(4)},
        {"a": torch.zeros(4), "b": torch.zeros(0)},
        {"a": torch.zeros(0)},
        {"a": torch.tensor(0.0)},
    ],
)
def test_the_digest_depends_on_name_shape_dtype_and_bits(other):
    assert digest_tensors(other) != digest_tensors({"a": torch.zeros(4)})


def of_clients(written):
    return ClientDigests(np.array(sorted(written)), "33" * 32, written)


def test_digest_ignores_order_and_strides():
    square = torch.arange(4.0).reshape(2, 2)
    assert digest_tensors({"a": square.T, "b": square}) == digest_tensors(
        {"b": square, "a": square.T.contiguous()}
    )
    assert (
        digest_run("00" * 32, [of_clients({2: "22" * 32, 1: "11" * 32})])
        == digest_run(
            "00" * 32, [of_clients({2: "22" * 32}), of_clients({1: "11" * 32})]
        )
        != digest_run("00" * 32, [of_clients({1: "22" * 32, 2: "11" * 32})])
    )


@pytest.mark.parametrize("memory", [0, 1500])
def test_rows_beyond_memory_are_stored_in_files_bit_for_bit(files, monkeypatch, memory):
    monkeypatch.setattr(clients, "SLAB_BYTES", 300)  # three rows
    store = ClientStore(range(20), TEMPLATE, memory)
    plain = ClientStore(range(20), TEMPLATE)
    for round in range(1, 8):
        ids = [(3 * round + step) % 20 for step in range(5)]
        state = {
            name: torch.stack(
                [(tensor + round + client).to(tensor.dtype) for client in ids]
            )
            for name, tensor in TEMPLATE.items()
        }
        store.put(ids, state)
        plain.put(ids, state)
        for name, tensor in plain.get(plain.ids).items():
            assert torch.equal(store.get(store.ids)[name], tensor)
    assert len(files) == (1 if memory else 7)
    assert store.snapshot().digests.written == plain.snapshot().digests.written


def test_a_snapshot_keeps_its_rows_and_later_rows_use_their_places(files, monkeypatch):
    monkeypatch.setattr(clients, "SLAB_BYTES", 32)  # two rows
    store = ClientStore([0, 1], {"row": torch.zeros(4)}, memory=0)
    store.put([0, 1], {"row": torch.ones(2, 4)})
    snapshot = store.snapshot().written
    for value in range(2, 40):
        store.put([0, 1], {"row": torch.full((2, 4), float(value))})
    for row in snapshot.values():
        assert torch.equal(row.tensors["row"], torch.ones(4))
    assert len(files) == 2
    del snapshot, row
    store.put([0, 1], {"row": torch.zeros(2, 4)})
    assert len(files) == 2


def test_the_state_goes_with_its_store():
    """It is freed at once, and not at Python's next search for reference cycles."""
    store = ClientStore([0], {"row": torch.zeros(4)}, memory=16, gpu_memory=16)
    store.put([0], {"row": torch.ones(1, 4)})
    row = weakref.ref(store.snapshot().written[0])
    gc.disable()
    try:
        del store
        assert row() is None
    finally:
        gc.enable()
