import tomllib

from hpcfl.experiment import config
from hpcfl.report import configuration


def test_the_printed_configuration_is_the_same_experiment():
    given = config.parse(
        {
            "name": "x",
            "rounds": 7,
            "model": {"name": "mlp", "hidden": [8, 4]},
            "training": {"lr": 1e-5},
            "method": {"name": "cwfedavg", "layers": 2},
            "data": {"root": 'a "quoted" pfad ä'},
        }
    )
    again = config.parse(tomllib.loads(configuration.toml(given)))
    assert again == given


def test_each_key_has_its_meaning_and_its_values():
    shown = configuration.toml(
        config.parse({"method": {"name": "fedprox"}})
    ).splitlines()
    assert (
        'scheme = "dirichlet"  # how samples are spread over clients (string)' in shown
    )
    (mu,) = (line for line in shown if line.startswith("mu = "))
    assert mu.endswith("# strength μ of the proximal term; 0 is FedAvg (number ≥ 0)")
    assert all("  # " in line for line in shown if line and not line.startswith("["))
