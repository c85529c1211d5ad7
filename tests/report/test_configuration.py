import tomllib

from hpcfl.experiment import config
from hpcfl.report import configuration


def test_the_printed_configuration_is_the_same_experiment():
    given = config.parse({"name": "x", "rounds": 7, "model": {"name": "mlp", "hidden": [8, 4]},
                          "training": {"lr": 1e-5}, "method": {"name": "cwfedavg", "layers": 2},
                          "data": {"root": "a \"quoted\" pfad ä"}})
    again = config.parse(tomllib.loads(configuration.toml(given)))
    assert again == given
