import re

import numpy as np
import pytest
import torch
from refusals import expect_refusal

from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.overlays.class_wise import compute_class_models
from hpcfl.trained import loading
from hpcfl.trained.models import predict_classes

NORMALISED = {"name": "tiny:normalised"}


def accuracy(run, trained):
    x, y = run.models.samples(trained.clients)
    return float((predict_classes(trained.module, x) == y).double().mean())


@pytest.mark.slow
def test_a_model_is_plain_torch_and_predicts_as_scored(played):
    run = played("fedavg", model=NORMALISED)
    before = torch.random.get_rng_state()
    model = run.model(client=1)
    assert torch.equal(torch.random.get_rng_state(), before)  # the draws did not change
    assert not model.training and "norm.running_var" in model.state_dict()
    assert model.state_dict()["norm.num_batches_tracked"].dtype == torch.int64
    test = run.models.replay.prepared.resources.samples
    raw = test.x[torch.from_numpy(test.test[1])].numpy().astype(np.float64)
    confusion = run.confusion(1, moment="post")
    right = run.predict(1, raw, moment="post") == test.y[test.test[1]].numpy()
    assert (
        right.sum()
        == confusion.trace()
        == run.results.values["clients/post/correct"][-2, 1]
    )
    assert confusion.sum() == run.results.values["clients/post/total"][-2, 1]
    assert confusion[3].sum() == 0  # client 1 has no sample of class 3
    for wrong in (raw[0], raw[:, :4], raw[:, None]):
        expected = rf"tiny:blobs .*\[n, 5\], .*{re.escape(str([*wrong.shape]))}"
        with expect_refusal(expected):
            run.predict(1, wrong)
    raw[0, 1] = np.nan
    for invalid in (raw, ["a text", "b"], None):
        with expect_refusal("tiny:blobs"):
            run.predict(1, invalid)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2])
def test_models_can_be_loaded_without_gradient_mode(played, lanes):
    """``post`` is trained again for it; the module can be trained outside the block."""
    folder = played("fedphp", rounds=2, runtime={"lanes": lanes}).folder
    for block in (torch.no_grad, torch.inference_mode):
        run = loading.load_run(folder, own=["tiny:blobs"])
        with block():
            model = run.model(client=1, moment="post")
            assert torch.is_inference_mode_enabled() == (block is torch.inference_mode)
            assert not torch.is_grad_enabled()
            confusion = run.confusion(1, moment="post")
        assert confusion.trace() == run.results.values["clients/post/correct"][-2, 1]
        model(torch.zeros(2, 5)).sum().backward()
        # from the values that the block stored
        assert run.model(client=2, moment="post") is not None


@pytest.mark.slow
def test_a_stragglers_model_is_trained_again_for_as_many_epochs(played):
    run = played("fedavg", training={"epochs": 3}, participation={"stragglers": 1.0})
    for one in run.models.of_clients(range(5), "post"):
        assert accuracy(run, one) == one.recorded


def test_the_global_model_is_the_servers(played):
    run = played(
        "fedavg", participation={"fraction": 0.5}, evaluation={"clients": "cohort"}
    )
    [found] = run.models.of_server()
    server = run.models.replay.server(4)["model"]
    row = torch.cat([tensor.flatten() for tensor in found.module.state_dict().values()])
    assert torch.equal(row, server) and found.round == 4
    assert accuracy(run, found) == found.recorded == run.accuracy("global")[-1]


class Short(FedAvg):
    def server_models(self, server):
        return {"short": server["model"][:3]}


class Numbers(FedAvg):
    def server_models(self, server):
        return {"list": [0.0]}


class Lost(FedAvg):
    def server_models(self, server):
        return {"lost": server["lost"]}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("Short", r"Short\.server_models .*'short' as float32 \[3\]"),
        ("Numbers", "server_models.*'list'"),
        ("Lost", "'lost'"),
    ],
)
def test_mistakes_in_the_servers_models_have_their_line(played, method, words):
    run = played(f"{__name__}:{method}")
    with expect_refusal(r"test_trained_models\.py:\d+: .*" + words):
        run.models.of_server()


@pytest.mark.slow
def test_class_models_can_be_loaded(played):
    run = played({"name": "cwfedavg", "layers": 1})
    rows = compute_class_models(run.models.replay.server(4))
    for label, row in enumerate(rows):
        model = run.model(f"class {label}")
        assert torch.equal(
            torch.cat([tensor.flatten() for tensor in model.state_dict().values()]), row
        )
    assert (
        run.confusion("class 2").sum()
        == run.results.values["clients/pre/total"][-1].sum()
    )


@pytest.mark.slow
def test_averaged_statistics_go_with_the_global_model(played):
    run = played("fedavg", model=NORMALISED, training={"buffers": "average"})
    [found] = run.models.of_server()
    assert accuracy(run, found) == found.recorded


CANNOT_BE_HAD = [
    ({"client": 9}, "client 9 "),
    ({"client": 0, "moment": "past"}, "'past' "),
    ({"client": 0, "at": "lst"}, "at = 'lst'"),
    ({"client": 0, "at": 2.0}, "at = 2.0"),
    ({"client": 0, "at": None}, "at = None"),
    ({"client": 0.0}, "client = 0.0"),
    ({"client": None}, "client = None"),
    ({"client": "class 0"}, "'class 0'"),
    ({"client": "global"}, "training.buffers = 'average'"),
    ({"client": 0, "moment": "post"}, "client 0 "),
]


@pytest.mark.slow
def test_unavailable_models_are_refused_in_one_line(played):
    run = played(
        "fedavg",
        model=NORMALISED,
        seed=5,
        participation={"fraction": 0.2},
    )
    for arguments, words in CANNOT_BE_HAD:
        with expect_refusal(r"^[^\n]+$") as error:
            run.model(**arguments)
        assert words in str(error.value)


@pytest.mark.slow
def test_numbers_of_numpy_name_the_same_models(played):
    run = played("fedavg", checkpoint={"every": 1, "keep": 4})
    for round in run.results.rounds:
        model, other = run.model(1, at=int(round)), run.model(np.int64(1), at=round)
        x, _ = run.models.samples([1])
        assert torch.equal(model(x), other(x))


def test_only_columns_of_models_can_be_loaded(played):
    run = played(
        "fedavg",
        rounds=1,
        partition={"clients": 4},
        newcomers={"clients": 1, "epochs": 1},
        training={"validation": 0.25},
    )
    for words, arguments in {
        "client 4 .* 0 … 3 ": (4,),
        "client -1 .* 0 … 3 ": (-1,),
        "'newcomers/after'": (0, "newcomers/after"),
        "'validation/pre' .* = 'pre'$": (0, "validation/pre"),
        "moment = 1 .* at": (0, 1),
        "'what' .*: global, post, pre$": (0, "what"),
    }.items():
        with expect_refusal(words):
            run.model(*arguments)


@pytest.mark.slow
def test_with_more_checkpoints_there_are_models_of_more_rounds(played):
    run = played("fedavg", checkpoint={"every": 1, "keep": 3})  # of three rounds
    for round in (1, 2, 3, 4):
        found = run.models.model(2, "pre", round)
        assert accuracy(run, found) == found.recorded and found.round == round
    with expect_refusal(r"'post' .*round 4; evaluation\.every = 1"):
        run.model(2, "post", at=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["convolution", "attention", "dropout"])
def test_a_single_model_equals_the_one_trained_in_lanes(played, kind):
    """Its loss is also equal, up to the rounding of products that are not batched."""
    model = {"name": "tiny:layered", "kind": kind}
    training = {"batch_size": 5, "epochs": 5}
    run = played(
        "fedavg",
        rounds=1,
        model=model,
        training=training,
    )
    losses = run.results.values["clients/post/loss"][-2]  # sums over samples
    for client in range(5):
        [one] = run.models.of_clients([client], "post")
        assert accuracy(run, one) == one.recorded
        x, y = run.models.samples([client])
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(one.module(x), y).item()
        assert loss == pytest.approx(losses[client] / len(y), rel=1e-6)


class Recurrent(torch.nn.Module):
    """A recurrent model, which torch cannot batch."""

    def __init__(self, classes):
        super().__init__()
        self.cells = torch.nn.GRU(5, 6, batch_first=True)
        self.head = torch.nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.cells(x[:, None])[0][:, -1])


def recurrent(shape, classes):
    return Recurrent(classes)


@pytest.mark.slow
def test_a_model_that_cannot_be_batched_is_trained_again(played):
    run = played("fedavg", model={"name": "test_trained_models:recurrent"})
    [one] = run.models.of_clients([2], "post")
    assert accuracy(run, one) == one.recorded
