import pytest

from hpcfl.experiment import config, plugin_keys


@pytest.mark.parametrize(
    ("own", "overrides", "found"),
    [
        ("model.hidden = [8]", ["model.name=cnn"], {"name": "cnn"}),
        (
            "model.head = 'cosine'\nmodel.hidden = [8]",
            ["model.name=cnn"],
            {"name": "cnn", "head": "cosine"},
        ),
        (
            "model.name = 'cnn'",
            ["model.hidden=[8]", "model.name=mlp"],
            {"name": "mlp", "hidden": [8]},
        ),
        ("model.hidden = [8]", ["model.name=mlp"], {"name": "mlp", "hidden": [8]}),
        (
            "partition.beta = 0.3\npartition.clients = 4",
            ["partition.scheme=iid"],
            {"scheme": "iid", "clients": 4},
        ),
        (
            "partition.beta = 0.3",
            ["partition.scheme=dirichlet-min"],
            {"scheme": "dirichlet-min", "beta": 0.3},
        ),
        (
            "method.name = 'ditto'\nmethod.lam = 2",
            ["method.name=fedavg"],
            {"name": "fedavg"},
        ),
    ],
)
def test_another_plugin_replaces_the_keys_of_the_one_before(
    tmp_path, own, overrides, found
):
    (tmp_path / "f.toml").write_text(own)
    table = config.read(tmp_path / "f.toml", overrides)
    assert table == {overrides[-1].split(".")[0]: found}


def test_a_models_keys_are_the_parameters_of_the_callable_that_makes_it():
    fields = plugin_keys.fields("model", {"name": "mlp"})
    assert "hidden" in fields and "head" in fields and "options" not in fields
