"""Methods that equal another method for some values of their keys."""

import pytest

# compared state: the server's model, or the models of the clients
MODEL, OWN = {}, {"server": (), "clients": ("model",)}
UPLOADS = {"server": ("model", "uploads")}
FIRST = {"rounds": 1}
SCORED = {"columns": ("pre", "post")}
ALL_SCORED = {"columns": ("pre", "post", "global")}
ROUNDED = {"exact": False}
PLAIN, FAST = ({"training": {"momentum": momentum}} for momentum in (0.0, 0.9))
EQUAL = {"counts": [[4, 4, 0, 0], [0, 4, 4, 0], [0, 0, 4, 4]], **ROUNDED}


def name_method(name, **keys):
    return {"name": name, **keys}


CREFF = name_method("creff", features_each=5, match_steps=3, head_epochs=4)
CLASS_WISE = name_method("fedavg", aggregation="class-wise")
UNIFORM = name_method("fedavg", weights="uniform")
LOCAL = name_method(
    "methods.test_partialfed:Loads", warmup=0, strategy_share=0.0, own=1
)
EQUAL_TRACES = name_method("methods.test_fedas:Equal", align_epochs=0)
CASES = [
    (name_method("fedprox", mu=0.0), "fedavg", MODEL),
    (name_method("fedlc", tau=0.0), "fedavg", MODEL),
    (name_method("fedala", ala=False), "fedavg", MODEL),
    (name_method("cwfedavg", aggregation="average"), "fedavg", MODEL),
    (name_method("fedavg-c", tune_epochs=0), "fedavg", MODEL),
    (name_method("feduv", lam=0.0, mu=0.0), "fedavg", MODEL),
    (name_method("moon", mu=0.0), "fedavg", MODEL),
    (name_method("fedavgm", momentum=0.0), "fedavg", MODEL),
    (name_method("fedcac", tau=0.0), "fedavg", {"columns": ("pre",)}),
    (name_method("fedem", components=1), "fedavg", PLAIN),
    (name_method("fedem", components=1), "fedavg", FAST),
    (name_method("fedphp", lam=0.0), "fedavg", FAST),
    (name_method("partialfed", warmup=3), "fedavg", MODEL),
    (name_method("lg-fedavg", layers="all"), "fedavg", SCORED),
    (name_method("fedper", shared=["*"]), "fedavg", ALL_SCORED),
    (name_method("knn-per", share=0), "fedavg", ALL_SCORED),
    ("knn-per", "fedavg", {"columns": ("global",)}),
    (name_method("apfl", alpha=0.0, adaptive=False), "fedavg", SCORED | ROUNDED),
    ("apfl", "fedavg", PLAIN | ROUNDED),
    ("apfl", "fedavg", FAST | ROUNDED),
    ("ditto", "fedavg", PLAIN),
    ("ditto", "fedavg", FAST),
    (CREFF, "fedavg", {"columns": ("post",)}),
    ("fednova", "fedavg", PLAIN | EQUAL),
    ("fednova", "fedavg", FAST | EQUAL),
    # the first round begins without a correction
    ("fedavgm", "fedavg", FIRST | ROUNDED),
    ("moon", "fedavg", FIRST | ROUNDED),
    ("scaffold", UNIFORM, FIRST | ROUNDED),
    (name_method("q-ffl", q=0.0), UNIFORM, ROUNDED),
    (
        name_method("methods.test_feddbe:Frozen", kappa=0.0),
        "fedavg",
        ALL_SCORED | {"server": ()},
    ),
    (
        name_method("cwfedavg", distribution="true", layers="all"),
        "fedavg",
        {
            "counts": [[4, 2, 2, 0], [8, 4, 4, 0], [2, 1, 1, 0]],
            "columns": ("pre",),
            **ROUNDED,
        },
    ),
    (CLASS_WISE, "cwfedavg", UPLOADS),
    (
        name_method("methods.test_options:Knowing", aggregation="class-wise"),
        CLASS_WISE,
        UPLOADS,
    ),
    (
        name_method("cwfedavg", distribution="wdr", wdr=0.0),
        name_method("cwfedavg", distribution="norm"),
        UPLOADS,
    ),
    (EQUAL_TRACES, name_method("fedper", weights="uniform"), SCORED | ROUNDED),
    ("methods.test_gpfl:Open", "fedper", SCORED | {"server": (), "clients": ("head",)}),
    (
        name_method("fedpac", lam=0.0, collaborate=False),
        name_method("fedrep", head_epochs=1),
        ALL_SCORED,
    ),
    (name_method("fedrep", head_epochs=0), "fedbabu", MODEL),
    (name_method("fedprox-c", tune_epochs=0), "fedprox", MODEL),
    (
        name_method("fedprox-c", mu=0.0, tune_epochs=2),
        name_method("fedavg-c", tune_epochs=2),
        MODEL,
    ),
    (name_method("diversifed", lam=0.0), "local", OWN | SCORED),
    (name_method("mr-mtl", lam=0.0), "local", OWN | SCORED),
    (name_method("fedamp", lam=0.0), "local", OWN),
    (name_method("fedproto", lam=0.0), "local", OWN),
    (name_method("fedtgp", lam=0.0, server_epochs=1), "local", OWN),
    ("fedproto", "local", OWN | FIRST),
    (name_method("fedtgp", server_epochs=1), "local", OWN | FIRST),
    (LOCAL | {"draw": "round"}, "local", OWN | ROUNDED),
    (LOCAL | {"draw": "batch"}, "local", OWN | ROUNDED),
    # without candidates, and with zero losses, so that no model is better
    (name_method("fedfomo", validation=0.0, received=0), "local", OWN),
    (name_method("fedfomo", validation=0.0), "local", OWN),
    ("methods.test_lg_fedavg:Apart", "local", OWN | {"clients": ("body=model",)}),
    (
        name_method("apfl", alpha=1.0, adaptive=False),
        "local",
        OWN | ROUNDED | {"clients": ("personal=model",)},
    ),
]


@pytest.mark.parametrize(("one", "other", "keys"), CASES)
def test_two_methods_are_equal_bit_for_bit(equal_runs, one, other, keys):
    equal_runs(one, other, **keys)


@pytest.mark.parametrize(
    "name",
    [
        name_method("cfl", eps1=0.0, quiet_rounds=0),
        name_method("ifca", clusters=1),
        name_method("pfedsim", warmup=1.0),
    ],
)
def test_the_models_of_a_server_are_fedavgs(federate, name):
    part = {"participation": {"fraction": 0.4}}
    found = federate(name, **part).server["models"]
    assert (found == federate("fedavg", **part).server["model"]).all()
