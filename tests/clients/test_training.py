"""Local training: correct batches and clients, keyed draws, and unchanged values."""

import numpy as np
import pytest
import torch

from hpcfl.clients import batch_plan
from hpcfl.files.scratch import Scratch
from hpcfl.rows import mixing

COUNTS = [
    [8, 3, 0, 0],
    [0, 4, 0, 0],
    [1, 0, 6, 6],
    [0, 0, 1, 0],
    [7, 7, 7, 7],
]  # 11, 4, 13, 1 and 28 samples

every_kernel = pytest.mark.parametrize("lanes", [1, 2, "auto"])


def batch_size(model, batch, lane):
    """Return the number of samples as a loss, so that the mean of a client's losses
    shows its batches.
    """
    return batch.x.shape[0] + zero(model)


def mean_of_inputs(model, batch, lane):
    return batch.x.mean() + zero(model)


def zero(model):
    """Return 0, with a gradient of every parameter."""
    return 0 * sum(p.sum() for p in model.parameters())


@every_kernel
@pytest.mark.parametrize("size", [1, 4, 10, 100])
def test_every_batch_is_a_real_batch(make_fleet, rows_of, lanes, size):
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=size)
    fleet.train(rows_of(fleet), loss=batch_size)
    for client, samples in enumerate(map(sum, COUNTS)):
        batches = [size] * (samples // size) + [samples % size] * (samples % size > 0)
        assert fleet.results.losses[client] == pytest.approx(
            sum(b * b for b in batches) / samples
        )


@every_kernel
def test_a_smaller_last_batch_can_be_dropped(make_fleet, rows_of, lanes):
    """A client with less than a batch does not train."""
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=4, drop_last=True)
    fleet.train(rows_of(fleet), loss=batch_size)
    for client, samples in enumerate(map(sum, COUNTS)):
        assert fleet.results.losses[client] == (4 if samples >= 4 else 0)


@every_kernel
def test_an_epoch_uses_each_sample_of_the_client_once(make_fleet, rows_of, lanes):
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=4)
    fleet.train(rows_of(fleet), loss=mean_of_inputs)
    samples = fleet.resources.samples
    for client in range(5):
        x, _ = samples.take(samples.train[client])
        assert fleet.results.losses[client] == pytest.approx(
            float(x.mean()), rel=1e-4, abs=1e-6
        )


@pytest.mark.slow
@every_kernel
@pytest.mark.parametrize("most", [1, 13, 30])
def test_the_number_of_samples_gathered_at_once_changes_no_bit(
    make_fleet, rows_of, monkeypatch, lanes, most
):
    found = []
    for samples in (batch_plan.BLOCK_SAMPLES, most):
        monkeypatch.setattr(batch_plan, "BLOCK_SAMPLES", samples)
        fleet = make_fleet(COUNTS, lanes=lanes, batch_size=4)
        found.append((fleet.train(rows_of(fleet), epochs=2), fleet.results.losses))
    assert all(map(torch.equal, *found))


@pytest.mark.slow
@every_kernel
def test_each_client_does_its_own_share_of_the_epochs(make_fleet, rows_of, lanes):
    """Of four epochs a client trains 1 + ⌊4u⌋, at most four; its losses are those of
    its last epoch.
    """
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=4)
    fleet.pace = np.array([0.0, 0.24, 0.5, 0.99, 1.0])
    trained = fleet.train(rows_of(fleet), epochs=4)
    for client, epochs in enumerate((1, 1, 3, 4, 4)):
        alike = make_fleet(COUNTS, lanes=lanes, batch_size=4)
        again = alike.train(rows_of(alike), epochs=epochs)
        assert torch.equal(trained[client], again[client])
        assert fleet.results.losses[client] == alike.results.losses[client]


@every_kernel
def test_trained_rows_beyond_memory_are_stored_in_a_file(
    make_fleet, rows_of, monkeypatch, files, lanes
):
    fleet, other = make_fleet(COUNTS, lanes=lanes), make_fleet(COUNTS, lanes=lanes)
    rows = rows_of(fleet)
    expected = fleet.train(rows)
    monkeypatch.setattr(mixing, "get_large_memory", lambda: Scratch(0))
    assert torch.equal(other.train(rows), expected) and len(files) == 1


@every_kernel
def test_a_client_without_samples_keeps_its_row(make_fleet, rows_of, lanes):
    fleet = make_fleet(COUNTS, lanes=lanes)
    rows = rows_of(fleet)
    full = fleet.train(rows)
    fleet.resources.samples.train[2] = np.zeros(0, np.int64)
    again = fleet.train(rows, phase="train again")
    assert torch.equal(again[2], rows[2]) and not torch.equal(full[2], rows[2])
    assert (again != rows).any(dim=1).tolist() == [True, True, False, True, True]


@every_kernel
def test_only_some_clients_train(make_fleet, rows_of, lanes):
    fleet, other = make_fleet(lanes=lanes), make_fleet(lanes=lanes)
    rows, only = rows_of(fleet), torch.tensor([True, False, True, False, True])
    trained, everyone = fleet.train(rows, only=only), other.train(rows)
    assert torch.equal(trained[~only], rows[~only])
    assert torch.equal(trained[only], everyone[only])


@pytest.mark.parametrize(
    "until",
    [lambda losses, _: (losses < 9).all(), lambda losses, _: losses[:, -1:] < 9],
)
def test_until_has_a_value_for_each_client(make_fleet, rows_of, until):
    fleet = make_fleet()
    with pytest.raises(TypeError, match=r"bool \[5\]"):
        fleet.train(rows_of(fleet), until=until, epochs=2)


@pytest.mark.slow
@every_kernel
def test_until_ends_each_client_by_itself(make_fleet, rows_of, lanes):
    limits = torch.tensor([[1], [3], [2], [9], [4]])
    fleet = make_fleet(lanes=lanes)
    rows = rows_of(fleet)

    def until(losses, lane):
        assert losses.shape[0] == len(lane["limit"])
        return losses.shape[1] >= lane["limit"][:, 0]

    ended = fleet.train(rows, until=until, epochs=5, variables={"limit": limits})
    for client in range(5):
        epochs = min(5, int(limits[client]))
        alone = make_fleet(lanes=lanes).train(rows, epochs=epochs)
        assert torch.equal(ended[client], alone[client])


@every_kernel
def test_a_share_of_the_samples_is_fixed_for_the_phase(make_fleet, rows_of, lanes):
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=100)
    rows, seen = rows_of(fleet), []
    fleet.train(rows, loss=batch_size, share=0.5)
    assert fleet.results.losses.tolist() == [5, 2, 6, 1, 14]  # ⌊half⌋, at least one

    def until(losses, lane):  # depends on the mean input of every epoch
        seen.append(losses)
        return torch.zeros(len(losses), dtype=torch.bool)

    fleet.train(
        rows, loss=mean_of_inputs, share=0.5, phase="another", until=until, epochs=4
    )
    for history in seen:
        torch.testing.assert_close(
            history, history[:, :1].expand_as(history), rtol=1e-4, atol=1e-6
        )


def test_orders_are_keyed_by_phase_round_client_and_epoch(make_fleet, rows_of):
    def trained(round=1, **how):
        fleet = make_fleet([[5, 5, 5, 5], [5, 5, 5, 5]], round=round)
        rows = rows_of(fleet)[:1].repeat(2, 1)
        return fleet.train(rows, **how)

    base = trained()
    assert torch.equal(base, trained())
    assert not torch.equal(base, trained(phase="other"))
    assert not torch.equal(base, trained(round=2))
    assert not torch.equal(base[0], base[1])


@every_kernel
@pytest.mark.parametrize(
    "params",
    [("body",), ("head",), (1,), ("head.bias",), ("hidden1.weight", "head.bias")],
)
def test_only_the_named_columns_move(make_fleet, rows_of, lanes, params):
    fleet = make_fleet(lanes=lanes)
    rows = rows_of(fleet)
    moved = (fleet.train(rows, params=params) != rows).any(dim=0)
    expected = torch.zeros_like(moved)
    for group in params:
        expected[fleet.layout.columns(group)] = True
    assert not (moved & ~expected).any()
    # the weights of a dead unit may be unchanged
    assert moved[expected].float().mean() > 0.8


def count_by_assignment(context):
    given = context.variables
    given["taken"] = given["taken"] + given["factor"]


def count_in_place(context):
    context.variables["taken"] += context.variables["factor"]


@every_kernel
@pytest.mark.parametrize("step", [count_by_assignment, count_in_place])
def test_assigned_variables_are_returned_and_given_ones_stay(
    make_fleet, rows_of, lanes, step
):
    fleet = make_fleet(COUNTS, lanes=lanes, batch_size=4)
    taken, factor = torch.zeros(5, 1), torch.arange(5.0)[:, None]
    variables = {"taken": taken, "factor": factor}
    _, after = fleet.train_by(step, rows_of(fleet), variables=variables)
    assert after["taken"][:, 0].tolist() == [0, 1, 8, 3, 28]  # 3, 1, 4, 1 and 7 batches
    assert after["factor"][:, 0].tolist() == [0, 1, 2, 3, 4] == factor[:, 0].tolist()
    assert taken[:, 0].tolist() == [0] * 5


@every_kernel
def test_variables_may_have_the_names_of_options(make_fleet, rows_of, lanes):
    fleet = make_fleet(lanes=lanes)

    def sum_of_steps(model, batch, lane):
        return lane.steps.sum() + zero(model)

    variables = {"steps": torch.arange(10.0).view(5, 2)}
    fleet.train(rows_of(fleet), loss=sum_of_steps, variables=variables)
    assert fleet.results.losses.tolist() == [1, 5, 9, 13, 17]


def test_draws_of_a_model_are_keyed_by_client(federate):
    """Such a model trains one client after the other. Its draws do not depend on other
    clients or earlier draws.
    """

    def first(others, share):
        played = federate(
            "local",
            [[4, 4, 0, 0], *others],
            rounds=2,
            runtime={"lanes": 1},
            model={"name": "tiny:dropping", "share": share},
        )
        return played.clients["model"][0]

    plain, one = first([], 0.0), first([[0, 5, 5, 0]], 0.5)
    torch.rand(1)
    assert torch.equal(first([[0, 0, 3, 3], [1, 1, 1, 1]], 0.5), one)
    assert not torch.equal(plain, one)
