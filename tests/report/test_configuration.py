import tomllib

import pytest

from hpcfl.experiment import config
from hpcfl.report import configuration


def test_each_key_follows_its_meaning_and_its_values():
    shown = configuration.write_toml(
        config.parse({"method": {"name": "fedprox"}})
    ).splitlines()
    meaning = "# strength μ of the proximal term; 0 is FedAvg (number ≥ 0)"
    (mu,) = (number for number, line in enumerate(shown) if line.startswith("mu = "))
    assert shown[mu - 1] == meaning


CHANGED = {
    "seed": 3,
    "rounds": 7,
    "model": {"name": "mlp", "hidden": [8, 4]},
    "training": {"lr": 1e-5, "epochs": 1, "milestones": [2], "schedule": "step"},
    "method": {"name": "cwfedavg", "layers": 2},
    "partition": {"scheme": "by-client", "lists": "lists.json"},
    "participation": {"select": "fastest"},
    "time": {"mode": "synchronous"},
    "shift": [{"kind": "rotation"}],
}


@pytest.mark.parametrize(
    "write", [configuration.write_toml, configuration.write_changed_keys]
)
def test_a_printed_configuration_is_the_same_experiment(write):
    for table in (
        CHANGED,
        {
            "method": {"name": "ditto"},
            "model": {"hidden": [8]},
            "data": {"root": '"ä"'},
        },
        {"protocol": "fedala", "method": {"name": "fedala"}},
    ):
        given = config.parse(table)
        assert config.parse(tomllib.loads(write(given))) == given


def test_only_changed_keys_are_shown():
    shown = configuration.write_changed_keys(config.parse(CHANGED))
    found = tomllib.loads(shown)
    assert set(found["training"]) == {"lr", "milestones", "schedule"}
    assert found["partition"] == {"scheme": "by-client", "lists": "lists.json"}
    assert found["participation"] == {"select": "fastest"}
    assert set(found) == {*CHANGED}
    assert found["rounds"] == 7
    assert found["shift"][0]["kind"] == "rotation"
    minimal = config.parse({"method": {"name": "fedavg"}})
    assert configuration.write_changed_keys(minimal) == '[method]\nname = "fedavg"'
