"""Messages reach the correct clients, and uploads are in client order; simulated ranks
share only what they send.
"""

import numpy as np
import pytest
import torch

from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.exchange import place
from hpcfl.communication.message import Field, Mixture, Pool

ALONE, CPU = OneProcess(), torch.device("cpu")
IDS = np.array([1, 2, 5])
PLACED = place([1.0] * 6, 1)


def there(message):
    return exchange.send(ALONE, PLACED, IDS, message, CPU)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]
)
def test_fields_keep_their_type_order_and_values(dtype):
    own, shared = torch.arange(6).view(3, 2).to(dtype), torch.arange(4).to(dtype)
    inbox, floats = there({"own": own, "shared": shared})
    assert torch.equal(inbox["own"], own) and torch.equal(inbox["shared"], shared)
    assert inbox["own"].dtype == inbox["shared"].dtype == dtype
    assert floats == 2 + 4
    back = exchange.gather(
        ALONE, PLACED, IDS, {"own": own}, [exchange.make_header({"own": own})]
    )
    assert torch.equal(back["own"], own) and back["own"].dtype == dtype


def test_floats_are_counted_as_the_message_declares():
    mask = Field(torch.ones(3, 64, dtype=torch.uint8), floats=64 / 32)
    some = Field(torch.zeros(3, 10), floats=torch.tensor([0, 5, 10]))
    assert there({"mask": mask, "some": some})[1] == 2 + 5
    assert there({})[1] == 0


def test_a_pool_is_sent_with_its_picks():
    rows, picks = torch.randn(2, 4), torch.tensor([[0, 1], [1, -1], [-1, -1]])
    inbox, floats = there({"models": Pool(rows, picks)})
    assert torch.equal(inbox["models"].rows, rows)
    assert torch.equal(inbox["models"].picks, picks)
    assert floats == (8 + 4 + 0) / 3


def mixture(clients):
    """Return a mixture of two models in float64, which have as many bytes as four in
    float32.
    """
    return Mixture(
        torch.randn(2, 100).double(), torch.rand(clients, 2).double(), torch.float32
    )


def test_a_mixture_is_sent_in_its_smaller_form():
    """The weights count 16 bytes for each client, a client's row 400."""
    kinds = [
        type(exchange.choose_lighter(mixture(clients=13), size))
        for size in (1, 2, 3, 4, 5)
    ]
    assert kinds == [Mixture, Mixture, Mixture, Mixture, Field]
    assert [
        type(exchange.choose_lighter(mixture(clients), 2)) for clients in (4, 5)
    ] == [
        Field,
        Mixture,
    ]


@pytest.mark.parametrize("models", [False, True])
def test_a_mixture_arrives_as_rows_in_either_form(monkeypatch, models):
    sent = mixture(len(IDS))
    monkeypatch.setattr(
        exchange,
        "choose_lighter",
        lambda value, size: value if models else Field(value.mix()),
    )
    inbox, floats = there({"own": sent, "shared": torch.zeros(4)})
    assert sorted(inbox) == ["own", "shared"] and floats == 100 + 4
    assert torch.equal(inbox["own"], (sent.weights @ sent.rows).float())
    assert inbox["own"].dtype == torch.float32


@pytest.mark.parametrize(
    ("rows", "weights"),
    [((2, 9), (3, 4)), ((2, 9), (2,)), ((9,), (3, 9)), ((0, 9), (3, 0))],
)
def test_a_mixture_of_other_shapes_is_refused(rows, weights):
    with pytest.raises(ValueError, match=r"models \[.*\], weights \[.*\]"):
        Mixture(torch.zeros(rows), torch.zeros(weights), torch.float32)


@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"'odd' .*\[n, width\]"):
        there({"odd": torch.zeros(shape)})


def test_ranks_that_disagree_about_a_message_are_found():
    nothing = exchange.Header({}, {})
    three, four = (
        exchange.Header({"model": [[0, width], "float32"]}, {}) for width in (3, 4)
    )
    with pytest.raises(ValueError, match=r"'model': .*3\].*'model': .*4\]"):
        exchange.find_common([nothing, three, four])
    assert exchange.find_common([nothing, three, nothing]) == three
    assert exchange.find_common([nothing, nothing]) == nothing


def test_place_gives_the_largest_client_to_the_least_loaded_worker():
    # 9 → rank 1; 7 → rank 2; 6 → rank 2 has 7, rank 1 has 9: rank 2 (13); 5 → rank 1
    # (14); 4 → rank 2 (17); 1 → rank 1 (15)
    assert place([5, 9, 4, 7, 1, 6], 3).owner.tolist() == [1, 1, 2, 2, 1, 2]


def test_place_gives_ties_to_the_lower_client_and_rank():
    assert place([1, 1, 1, 1], 3).owner.tolist() == [1, 2, 1, 2]


def test_clients_of_one_kind_are_placed_together():
    # Without kinds: 5 → rank 1, 5 → rank 2, then the 2s → 1, 2, 1, 2, and 1 → rank 1.
    costs, kinds = [2, 5, 2, 5, 2, 2, 1], ["b", "a", "a", "a", "b", "a", "a"]
    assert place(costs, 3).owner.tolist() == [1, 1, 2, 2, 1, 2, 1]
    # The 2s of kind a, clients 2 and 5, go to rank 1, those of kind b, clients 0 and 4,
    # to rank 2.
    assert place(costs, 3, kinds).owner.tolist() == [2, 1, 1, 2, 2, 1, 1]


@pytest.mark.parametrize("kinds", [None, [*range(5)] * 5])
@pytest.mark.parametrize("size", [2, 3, 8, 30])
def test_every_client_has_one_worker_and_loads_are_within_four_thirds_of_the_best(
    size, kinds
):
    cost = np.random.default_rng(0).integers(1, 100, 25)
    placed = place(cost.tolist(), size, kinds)
    assert sorted(
        np.concatenate([placed.list_clients(rank) for rank in range(size)])
    ) == list(range(25))
    assert len(placed.list_clients(0)) == 0
    assert placed.idle == ([26, 27, 28, 29] if size == 30 else [])
    loads = [cost[placed.list_clients(rank)].sum() for rank in range(1, size)]
    assert max(loads) <= 4 / 3 * max(cost.sum() / (size - 1), cost.max())
