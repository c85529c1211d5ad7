"""Sample-level privacy of runs: ε of each client, calibration and refusals."""

import math

import numpy as np
import pytest
import tiny
from playing import prepare_alone, prepare_tiny, run_table
from refusals import expect_refusal
from whole_runs import PART, is_the_same_elsewhere

from hpcfl.clients.batch_plan import TrainingRequest
from hpcfl.clients.losses import Batch
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import preflight
from hpcfl.trained import loading
from hpcfl.updates.sample_level import (
    count_batches,
    describe,
    find_epsilon,
    find_sigma,
    make_guarantee,
)

SAMPLE = {"unit": "sample"}
TWO = [[6, 6, 0, 0], [6, 6, 6, 6]]  # two clients, with 12 and 24 samples
PRIVATE = {**SAMPLE, "clip": 1.0, "noise": 1.0}
# N, b, σ, steps: ε of this module and of Opacus 1.6.0 at δ = 1e-5, as both printed
# them. At fractional orders dp-accounting's value is larger (updates.md, U7).
EPSILONS = [
    (600, 50, 1.5, 240, 4.985731, 4.985320),
    (40, 50, 3.0, 20, 7.532306, 7.532306),
    (100, 32, 1.0, 50, 17.886824, 17.821423),
]


@pytest.mark.parametrize("case", EPSILONS)
def test_epsilon_of_a_client(case):
    samples, size, sigma, steps, own, of_opacus = case
    found = find_epsilon(make_guarantee(samples, size, 1e-5), sigma, [0, steps])
    assert found == pytest.approx(own, rel=1e-6)
    assert of_opacus * (1 - 1e-6) <= found <= of_opacus * 1.004


def integrate_divergence(rate, sigma, order):
    """Return the Rényi divergence of a mixture of two Gaussians from one, by
    quadrature.
    """
    x = np.linspace(-12, 12, 100_001)
    log_one = -(x**2) / 2 / sigma**2
    log_other = -((x - 1) ** 2) / 2 / sigma**2
    log_mixture = np.logaddexp(math.log1p(-rate) + log_one, math.log(rate) + log_other)
    density = np.exp(order * log_mixture + (1 - order) * log_one)
    integral = density.sum() * (x[1] - x[0]) / (sigma * math.sqrt(2 * math.pi))
    return math.log(integral) / (order - 1)


def test_epsilon_is_not_below_that_of_the_integral():
    """The bound of Balle et al. at order 2.2, with steps, σ and q of the third case."""
    order, steps, delta = 2.2, 50, 1e-5
    divergence = steps * integrate_divergence(0.32, 1.0, order)
    conversion = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    exact = divergence + conversion
    assert exact == pytest.approx(17.821423, abs=1e-5)
    found = find_epsilon(make_guarantee(100, 32, delta), 1.0, [0, steps])
    assert exact < found < 1.004 * exact


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", EPSILONS)
def test_epsilon_is_that_of_opacus(case):
    accountants = pytest.importorskip("opacus.accountants")
    samples, size, sigma, steps, _, of_opacus = case
    accountant = accountants.RDPAccountant()
    accountant.history.append((sigma, min(1.0, size / samples), steps))
    assert accountant.get_epsilon(1e-5) == pytest.approx(of_opacus, rel=1e-6)


def test_two_gradients_of_a_mini_batch_are_one_release():
    """Opacus gives 5.353090 for 100 steps of σ = 1.5 and 50 of 1.5/√2."""
    guarantee = make_guarantee(600, 50, 1e-5)
    found = find_epsilon(guarantee, 1.5, [0, 100, 50])
    assert found == pytest.approx(5.353090, rel=1e-3)
    halved = find_epsilon(guarantee, 1.5 / math.sqrt(2), [0, 150])
    assert find_epsilon(guarantee, 1.5, [0, 0, 150]) == pytest.approx(halved)
    assert find_epsilon(guarantee, 1.5, [0, 0]) == 0
    assert find_epsilon(guarantee, 0.0, [0, 3]) == math.inf


def test_calibration_returns_its_target():
    guarantee = make_guarantee(600, 50, 1e-5)
    sigma = find_sigma(guarantee, 1.0, [0, 480])
    assert sigma == pytest.approx(7.502115, abs=2e-6)
    assert find_epsilon(guarantee, sigma, [0, 480]) == pytest.approx(1.0, rel=1e-3)
    both = find_sigma(guarantee, 1.0, [0, 240, 120])
    assert find_epsilon(guarantee, both, [0, 240, 120]) == pytest.approx(1, rel=1e-3)
    assert find_sigma(guarantee, 1.0, [0, 0]) == 0


def test_mini_batches_of_a_round():
    trainings = [
        TrainingRequest(2, 1, None, 1.0, 1),
        TrainingRequest(3, 1, 4, 1.0, 1),
        TrainingRequest(5, 1, None, 1.0, 2),
    ]
    assert count_batches(trainings, 100, 32)[:3] == [0, 2 * 4 + 3 * 4, 5 * 4]
    assert count_batches(trainings, 400, 32)[1] == 2 * 13 + 3 * 4


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrep", "ditto", "apfl"])
def test_a_run_is_the_same_on_any_number_of_ranks_and_resumed(tmp_path, method):
    table = tiny.table(method, privacy=PRIVATE, participation=PART)
    assert is_the_same_elsewhere(tmp_path, table)[0]


IMAGES = {
    "data": {"dataset": "digits", "samples": 60},
    "model": {"name": "lenet"},
}
TEXTS = {
    "data": {"dataset": "npz"},
    "model": {"name": "text-transformer", "width": 8, "heads": 2, "hidden": 8},
}


@pytest.mark.slow
@pytest.mark.parametrize("sections", [IMAGES, TEXTS], ids=["images", "texts"])
def test_other_models_are_the_same_on_any_number_of_ranks_and_resumed(
    tmp_path, sections
):
    """Convolutions, and attention with dropout."""
    table = tiny.table("fedper", **sections, privacy=PRIVATE, rounds=2)
    table["partition"] = {"scheme": "iid", "clients": 3}
    if sections is TEXTS:
        tokens = np.random.default_rng(0).integers(9, size=(60, 4))
        np.savez(tmp_path / "texts.npz", x=tokens, y=tokens[:, 0] % 3)
        table["data"]["file"] = str(tmp_path / "texts.npz")
    assert is_the_same_elsewhere(tmp_path, table)[0]


def test_a_run_spends_its_target(tmp_path):
    """A client that takes part in all rounds ends with ε, as each round records."""
    privacy = {**SAMPLE, "clip": 1.0, "epsilon": 3.0}
    run_table(tiny.table("local", TWO, privacy=privacy), tmp_path / "run")
    frame = loading.load_run(tmp_path / "run").clients()
    spent = frame["privacy/epsilon"].dropna()
    assert len(spent) == 3 * len(TWO)
    assert spent.max() == pytest.approx(3.0, rel=1e-3)


def list_lines(method="mr-mtl", **privacy):
    tried = preflight.run(
        prepare_tiny(method, TWO, privacy={**SAMPLE, **privacy}), OneProcess()
    )
    clients = np.arange(tried.setup.clients)
    privacy, trainings = tried.resources.privacy, tried.findings.trainings
    return describe(
        tried.config, privacy, trainings, tried.data.sizes, lambda _: clients
    )


def test_check_describes_the_guarantee():
    lines = "\n".join(list_lines(clip=1.0, epsilon=2.0))
    assert "ε = 2 per client" in lines or "ε from" in lines
    assert "add or remove one sample" in lines
    assert "no finite ε" in list_lines()[0]


class Teacher(FedAvg):
    """A method whose loss reads a variable, with or without a declaration."""

    def training_loss(self):
        return self.loss

    def loss(self, model, batch: Batch, lane):
        return super().loss(model, batch, lane) + 0 * lane.teacher.sum()

    def loss_variables(self, fleet, inbox):
        return {"teacher": fleet.rows(inbox["model"])}


class Declaring(Teacher):
    private_variables = ("teacher",)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedproto", r"lane\.prototypes"),
        ("fedrod", r"\('counts'\)"),
        ("feddbe", "class_means"),
        ("ifca", "loss_of"),
        ("fedfomo", "method.name = 'fedfomo'"),
        ("per-fedavg", "unit = 'sample' .*mini-batches"),
        ({"name": "fedavg", "ala": True}, "method.ala = true"),
        ({"name": "test_sample_level:Teacher"}, r"lane\.teacher"),
    ],
)
def test_uncovered_methods_are_refused_before_training(method, words):
    with expect_refusal(words):
        list_lines(method, clip=1.0, noise=1.0)


def test_a_method_may_declare_the_inputs_of_its_loss():
    assert list_lines({"name": "test_sample_level:Declaring"}, clip=1.0, noise=1.0)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"model": {"name": "tiny:Normalised", "hidden": 6}},
            "unit = 'sample' .*batch norm",
        ),
        ({"model": {"name": "tiny:dropping"}}, "random"),
        ({"training": {"drop_last": True}}, "drop_last"),
        ({"participation": {"select": "power-of-choice"}}, "participation.select"),
        ({"time": {"mode": "asynchronous"}}, "asynchronous"),
    ],
)
def test_uncovered_sections_are_refused_before_training(sections, words):
    table = tiny.table("fedavg", privacy=PRIVATE, **sections)
    with expect_refusal(words):
        preflight.run(prepare_alone(table), OneProcess())


def test_keys_of_clients_are_refused():
    table = tiny.table("fedavg", privacy={**PRIVATE, "local": True})
    with expect_refusal(r"privacy: local: .*unit = 'sample'"):
        config.parse(table)
