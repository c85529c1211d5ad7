"""Recorded functions give the same bits."""

import pytest
import torch
from torch.func import vmap
from torch.nn.functional import batch_norm, cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.clients.execution import batched, recorded
from hpcfl.clients.execution.lane_independence import Dependent
from hpcfl.clients.execution.recorded import Recorded, is_apart, record
from hpcfl.errors import RankFailure, RunFailure


def test_a_recording_replaces_a_function_that_runs_often_and_gives_its_bits(
    monkeypatch,
):
    monkeypatch.setattr(recorded, "OFTEN", 3)
    calls = []

    def function(x, y):
        calls.append(x.shape)
        sums = (x * 2).sum(dim=(1, 2)) + (x * 2).sum(dim=(1, 2))
        return torch.tanh(x.view(-1, 2, 3) @ y), sums

    replayed = Recorded(function)
    for step in range(20):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4, 2, 3, generator=generator)
        y = torch.ones(4, 3, 2) * step
        for result, expected in zip(replayed(x, y), function(x, y), strict=True):
            assert torch.equal(result, expected)
    assert len(calls) < 20 + 20 / 2  # the test's own, and few by the recording
    another_layout = x.transpose(1, 2).contiguous().transpose(1, 2)
    for result, expected in zip(
        replayed(another_layout, y), function(another_layout, y), strict=True
    ):
        assert torch.equal(result, expected)


def test_a_number_that_changes_is_noticed_before_there_are_four_times_as_many_replays(
    monkeypatch,
):
    monkeypatch.setattr(recorded, "OFTEN", 3)
    factor = [2.0]
    replayed = Recorded(lambda x: (x * factor[0],), "the loss 'mine'")
    for _ in range(3 + 5):
        assert replayed(torch.ones(2))[0].tolist() == [2, 2]
    factor[0] = 2.01
    for _ in range(10):
        replayed(torch.ones(2))  # the sixth to the fifteenth replay
    words = r"^the loss 'mine' reads a number that changed .*lane\.NAME.*runtime\.replay = false"
    with pytest.raises(RunFailure, match=words):
        replayed(torch.ones(2))


def test_what_is_no_number_is_no_change(monkeypatch):
    monkeypatch.setattr(recorded, "OFTEN", 0)
    replayed = Recorded(lambda x: (x * 2.0,))
    for value in (torch.nan, torch.inf, 1.0):
        replayed(torch.full((2,), value))


def test_two_calls_say_how_far_rounding_goes():
    """As on a GPU, where sums may have another order in each call."""
    found, again = torch.tensor([1.0, 1.001]), torch.tensor([1.0, 1.0001])
    assert is_apart(found, torch.ones(2), torch.ones(2))
    assert not is_apart(found, torch.ones(2), again)
    assert is_apart(found, torch.tensor([1.0, torch.nan]), again)


@pytest.mark.slow
def test_a_method_whose_loss_reads_such_a_number_is_named(federate, monkeypatch):
    plain = federate("tiny:Fades").digest  # too short to be recorded
    monkeypatch.setattr(recorded, "OFTEN", 1)
    with pytest.raises(RankFailure) as failure:
        federate("tiny:Fades")
    words = "the loss 'FedAvg.objective' of the method 'tiny:Fades' reads"
    assert str(failure.value.__cause__).startswith(words)
    assert federate("tiny:Fades", runtime={"replay": False}).digest == plain


def test_equal_tensors_that_are_written_to_stay_apart():
    def sums(x):
        one, other = x.new_zeros(3), x.new_zeros(3)
        return one.add_(x), other.add_(x * 2)

    recording = record(sums, (torch.ones(3),))
    assert [part.tolist() for part in recording(torch.ones(3))] == [
        [1.0] * 3,
        [2.0] * 3,
    ]


class Calls(TorchDispatchMode):
    """The operations that run inside the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **kwargs or {})


def test_only_what_depends_on_the_arguments_is_computed_again():
    def shifted(x):
        halves = torch.full((2,), 3.0).unbind()
        return (x.view(2, 2) * 1 + torch.ones_like(x) * halves[0] + x.new_zeros(2, 2),)

    recording, x = (
        record(shifted, (torch.ones(2, 2),)),
        torch.arange(4.0).view(2, 2),
    )
    with Calls() as calls:
        found = recording(x)
    assert found[0].tolist() == [[3, 4], [5, 6]] and calls.names == ["add", "add"]


def gradient(logits, y, mask):
    """Of the mean loss of each lane, in which cross-entropy leaves out samples with the
    class −100.
    """

    def loss(logits, y, mask):
        return cross_entropy(logits, y) + cross_entropy(
            logits, torch.where(mask, y, -100)
        )

    leaf = logits.detach().requires_grad_()
    losses = vmap(loss)(leaf, y, mask)
    return *torch.autograd.grad(losses.sum(), leaf), losses.detach()


def test_batch_norm_moves_its_statistics_as_often_as_it_is_called():
    """Its schema does not say that it changes them, and two equal calls could be taken
    for one.
    """

    def twice(x, mean, variance):
        return tuple(batch_norm(x, mean, variance, training=True) for _ in range(2))

    x = torch.randn(8, 3)
    recording = record(twice, (x, torch.zeros(3), torch.ones(3)))
    ends = []
    for function in (twice, recording):
        statistics = [torch.zeros(3), torch.ones(3)]
        function(x, *statistics)
        ends.append(torch.stack(statistics))
    assert torch.equal(*ends)


def test_operators_are_looked_at_once_for_the_shapes_of_a_lane(monkeypatch):
    """Whatever the number of lanes; of other shapes a function may do something else."""
    looks = []

    def look():
        looks.append(Dependent())
        return looks[-1]

    monkeypatch.setattr(recorded, "Dependent", look)
    dependent = set()
    function = Recorded(
        lambda rows: (rows.sigmoid() if rows.shape[1] > 2 else rows + 1,),
        dependent=dependent,
    )
    for lanes in (3, 2, 1, 3):
        function(torch.ones(lanes, 2))
    assert len(looks) == 1 and not dependent
    for lanes in (1, 3):
        function(torch.ones(lanes, 5))
    assert len(looks) == 2 and dependent == {"sigmoid"}


def test_class_numbers_are_not_looked_through_again():
    """What a loss makes of them is."""
    y, mask = torch.tensor([2, 0, 1]), torch.tensor([True, False, True])
    given = gradient, (torch.randn(1, 3, 4), y[None], mask[None])
    recording, plain = record(*given, labels=1), record(*given)
    counts = []
    for function in (recording, plain):
        with Calls() as calls:
            function(*given[1])
        counts.append(calls.names.count("ne"))
    assert counts == [1, 2]
    others = (
        torch.randn(1, 3, 4),
        torch.tensor([[3, 1, 1]]),
        torch.tensor([[False, True, True]]),
    )
    for one, other in zip(recording(*others), given[0](*others), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [2, "all"])
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}], ids=["plain", "momentum"])
def test_training_has_the_same_bits_replayed_and_not(
    make_fleet, rows_of, monkeypatch, lanes, training
):
    found = []
    for often in (1, 10**9):
        monkeypatch.setattr(recorded, "OFTEN", often)
        fleet = make_fleet(lanes=10_000_000 if lanes == "all" else lanes, **training)
        rows = rows_of(fleet)
        for phase in ("one", "two", "three"):
            rows = fleet.train(rows, epochs=2, phase=phase)
        found.append((rows, fleet.losses, fleet.resources.kernel._recordings))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(
        found[0][1], found[1][1]
    )
    assert any(entry._recordings for entry in found[0][2].values())


def test_scoring_has_the_same_bits_replayed_and_not(make_fleet, rows_of, monkeypatch):
    monkeypatch.setattr(recorded, "OFTEN", 0)
    replayed, plain = make_fleet(), make_fleet(lanes=5)
    recordings = []
    monkeypatch.setattr(
        recorded,
        "record",
        lambda *given: recordings.append(1) or record(*given),
    )
    for seed in (1, 2):  # the second time with other models
        replayed.score(f"column {seed}", rows_of(replayed, seed))
    monkeypatch.setattr(recorded, "OFTEN", 1000)
    for seed in (1, 2):
        plain.score(f"column {seed}", rows_of(plain, seed))
        one, other = replayed.scores[f"column {seed}"], plain.scores[f"column {seed}"]
        assert one.keys() == other.keys() and all(
            torch.equal(one[name], other[name]) for name in one
        )
    assert recordings


def test_recordings_that_are_used_outlive_those_that_are_not(make_fleet, rows_of):
    fleet = make_fleet()
    fleet.score("used", rows_of(fleet))
    used = dict(fleet.resources.kernel._recordings)
    for seed in range(2 * batched.MOST):
        fleet.score("passing", rows_of(fleet, seed), lambda model, x, lane: model(x))
        fleet.score("used", rows_of(fleet, seed))
    kept = fleet.resources.kernel._recordings
    assert len(kept) == batched.MOST and used.items() <= kept.items()
