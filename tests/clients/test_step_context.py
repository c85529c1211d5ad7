"""Operations of the fleet besides plain training: a method's steps, other models in a
loss, losses of models, draws.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hpcfl.clients import Pool

every_lanes = pytest.mark.parametrize("lanes", [1, 3, "auto"])


@every_lanes
def test_batches_of_a_step_are_disjoint_and_never_empty(make_fleet, rows_of, lanes):
    """Two batches of 4 per step: 21 samples give steps of 4 + 4, 4 + 4 and 3 + 2; 9
    give 4 + 4 without the last sample.
    """
    fleet = make_fleet([[21, 0, 0, 0], [4, 5, 0, 0], [1, 0, 0, 0]], lanes=lanes)
    seen = []

    def step(context):
        seen.extend(
            [len(batch.y[lane]) for batch in context._batches]
            for lane in range(len(context.rows()))
        )
        gradients = [context.gradient(batch=batch) for batch in (0, 1)]
        assert not torch.equal(*gradients)

    rows = rows_of(fleet)
    assert torch.equal(fleet.train_by(step, rows, batches=2)[0], rows)
    assert sorted(seen) == [[3, 2], [4, 4], [4, 4], [4, 4]]


def test_a_step_without_a_gradient_has_losses(make_fleet, rows_of):
    fleet = make_fleet()
    fleet.train_by(lambda context: context.regulariser(torch.ones(1)), rows_of(fleet))
    assert (fleet.results.losses == 1).all()


def descend(context):
    context.descend(0.1)


def return_rows(context):
    return context.rows() - context.gradient()


def return_elements(context):
    context.apply_elementwise(lambda rows, gradient: rows - gradient)


@pytest.mark.parametrize("step", [return_rows, return_elements])
def test_a_returned_value_that_would_be_lost_is_refused(make_fleet, rows_of, step):
    fleet = make_fleet()
    with pytest.raises(TypeError, match="returns"):
        fleet.train_by(step, rows_of(fleet))


class Scaled(nn.Module):
    """A linear model with a trained factor of the logits."""

    def __init__(self, shape, classes, *, factor: list[int]):
        super().__init__()
        self.head = nn.Linear(shape[0], classes)
        self.factor = nn.Parameter(torch.ones(factor))

    def forward(self, x):
        return self.factor * self.head(x)


@every_lanes
def test_a_parameter_may_have_no_dimension(make_fleet, rows_of, lanes):
    trained = []
    for factor in ([], [1]):
        model = {"name": "test_step_context:Scaled", "factor": factor}
        fleet = make_fleet(model=model, lanes=lanes, clip=0.1, lr=0.1)
        rows = fleet.train(rows_of(fleet), proximal=(0.1, rows_of(fleet, seed=2)))
        trained.append(fleet.train_by(descend, rows, phase="moves")[0])
    assert torch.equal(*trained)


def reads(context):
    return context.rows()


def moves(context):
    context.descend(0.1)
    return context.rows()


def descends(context):
    context.optimizer_step(torch.ones_like(context.rows()))
    return context.rows()


def differentiates(context):
    return context.gradient()


@pytest.mark.slow
@every_lanes
@pytest.mark.parametrize("then", [reads, moves, descends, differentiates])
def test_a_gradient_elsewhere_leaves_the_models(make_fleet, rows_of, lanes, then):
    """Later operations and the next step read the unchanged models; clients are
    unequal.
    """
    found = []
    for elsewhere in (False, True):
        counts, seen = [[9, 0, 0, 0], [4, 5, 0, 0], [1, 0, 2, 0]], []
        fleet = make_fleet(counts, lanes=lanes)

        def step(context, elsewhere=elsewhere, seen=seen):
            if elsewhere:
                context.gradient(context.rows() + 1)
                context.gradient(context.rows() - 1)
            seen.append(then(context))
            if elsewhere:
                context.gradient(context.rows() + 1)

        found.append((fleet.train_by(step, rows_of(fleet), epochs=2)[0], *seen))
    assert len(found[0]) == len(found[1])
    assert all(map(torch.equal, *found))


@every_lanes
def test_move_equals_a_step_by_rows_and_gradient(make_fleet, rows_of, lanes):
    """Bit for bit, with lanes that finish early and last batches that are not
    neighbours.
    """
    counts = [[21, 0, 0, 0], [4, 5, 0, 0], [1, 0, 0, 0], [4, 5, 0, 0], [2, 0, 3, 0]]

    def whole(context):
        theta = context.rows()
        for batch in (0, 1):
            pull = 2 * (theta - context.variables["anchor"])
            theta = theta - 0.1 * (context.gradient(theta, batch) + pull)
        context.set_rows(theta)

    def descend(rows, gradient, anchor):
        rows -= (rows - anchor).mul_(2).add_(gradient).mul_(0.1)

    def by_layer(context):
        for batch in (0, 1):
            context.apply_elementwise(descend, context.variables["anchor"], batch=batch)

    found = []
    for step in (whole, by_layer):
        fleet = make_fleet(counts, lanes=lanes)
        rows, variables = rows_of(fleet), {"anchor": rows_of(fleet, seed=2)}
        trained, _ = fleet.train_by(
            step, rows, batches=2, epochs=2, variables=variables
        )
        found.append((trained, fleet.results.losses))
    assert all(map(torch.equal, *found))
    assert not torch.equal(found[0][0], rows)


@pytest.mark.slow
@every_lanes
@pytest.mark.parametrize(
    "training",
    [
        {},
        {"optimizer": "adam"},
        {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.5},
    ],
)
def test_optimizer_step_is_a_step_of_the_experiments_optimiser(
    make_fleet, rows_of, lanes, training
):
    fleet = make_fleet(lanes=lanes, epochs=2, **training)
    rows = rows_of(fleet)
    plain = fleet.train(rows)
    again = make_fleet(lanes=lanes, epochs=2, **training)

    def step(context):
        context.optimizer_step(context.gradient())

    assert torch.equal(again.train_by(step, rows)[0], plain)


@every_lanes
def test_losses_of_models_on_the_clients_samples(make_fleet, rows_of, lanes):
    fleet = make_fleet(lanes=lanes)
    models, samples = rows_of(fleet)[:3], fleet.resources.samples
    module = fleet.setup.build()
    picks = torch.tensor([[0, 1], [2, 0], [1, -1], [-1, -1], [2, 2]])
    found = fleet.loss_of(Pool(models, picks))
    for client in range(5):
        x, y = samples.take(samples.train[client])
        for column, pick in enumerate(picks[client].tolist()):
            module.load_state_dict(fleet.layout.split(models[pick]))
            loss = cross_entropy(module(x), y).item()
            expected = loss if pick >= 0 else float("inf")
            assert float(found[client, column]) == pytest.approx(expected, rel=1e-5)
    first = fleet.loss_of(Pool(models, torch.zeros(5, 1).long()))
    assert torch.equal(fleet.loss_of(models[0]), first[:, 0])
    # no sample is held out
    assert not fleet.loss_of(models[0], "validation").any()


def test_uniform_draws_are_each_clients_own(make_fleet):

    def draw(purpose, *shape, **keys):
        return make_fleet(**keys).uniform(purpose, *shape)

    draws = draw("noise", 4, 3)
    assert draws.shape == (5, 4, 3) and (draws >= 0).all() and (draws < 1).all()
    assert len(draws.unique()) == draws.numel()
    assert torch.equal(draw("noise", 4, 3), draws)
    # more steps only add numbers
    assert torch.equal(draw("noise", 9, 3)[:, :4], draws)
    assert not torch.equal(draw("noise", 4, 3, round=2), draws)
    assert not torch.equal(draw("other", 4, 3), draws)


@every_lanes
def test_a_step_has_its_index_and_the_fleets_draws(make_fleet, rows_of, lanes):
    """Other lanes change neither: 9, 2 and 5 samples in batches of 4 give 3, 1 and 2 steps
    per epoch. A step may store its index.
    """
    fleet = make_fleet([[9, 0, 0, 0], [2, 0, 0, 0], [3, 2, 0, 0]], lanes=lanes)
    seen = [], [], []

    def step(context):
        context.gradient()
        noise = context.uniform("noise", 3)
        if context.index.max() > 1:
            assert context.uniform("later").shape == (len(noise),)
        for lane, client in enumerate(context.variables["client"]):
            seen[client].append((context.index[lane], noise[lane]))

    variables = {"client": torch.arange(3)}
    fleet.train_by(step, rows_of(fleet), epochs=2, variables=variables)
    expected = fleet.uniform("noise", 6, 3)
    for client, steps in enumerate((6, 2, 4)):
        indices, numbers = map(torch.stack, zip(*seen[client], strict=True))
        assert indices.tolist() == list(range(steps))
        assert torch.equal(numbers, expected[client, :steps])


def test_trainings_of_two_phases_draw_other_numbers(make_fleet, rows_of):
    fleet = make_fleet()
    drawn = []

    def step(context):
        drawn.append(context.uniform("noise", 3)[0])
        context.gradient()

    for phase in ("train", "second", "third"):
        fleet.train_by(step, rows_of(fleet), epochs=1, phase=phase)
    assert len(torch.stack(drawn).unique()) == 3 * len(drawn)


def test_draws_of_one_purpose_have_one_shape(make_fleet, rows_of):
    fleet = make_fleet()
    with pytest.raises(ValueError, match=r"'noise' .* \[2\] .* \[3\]"):
        fleet.train_by(
            lambda context: (context.uniform("noise", 2), context.uniform("noise", 3)),
            rows_of(fleet),
        )


def test_class_means_over_draws(make_fleet, rows_of):
    """If a class has at most as many samples as a draw, every draw contains the class;
    of a larger class it is a sample.
    """
    fleet = make_fleet([[3, 12, 0, 0]])
    rows = rows_of(fleet)

    def means(**keys):
        return fleet.class_means(rows, lambda model, x, _: model.features(x), **keys)

    exact, drawn = means(), means(draws=(10, 4))
    torch.testing.assert_close(drawn[:, 0], exact[:, 0])
    assert not torch.allclose(drawn[:, 1], exact[:, 1])
    assert torch.equal(drawn[:, 2:], exact[:, 2:])
    assert torch.equal(means(draws=(10, 4)), drawn)
