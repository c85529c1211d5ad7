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


def of(name, **keys):
    return {"name": name, **keys}


CREFF = of("creff", features_each=5, match_steps=3, head_epochs=4)
CLASS_WISE = of("fedavg", aggregation="class-wise")
UNIFORM = of("fedavg", weights="uniform")
LOCAL = of("methods.test_partialfed:Loads", warmup=0, strategy_share=0.0, own=1)
EQUAL_TRACES = of("methods.test_fedas:Equal", align_epochs=0)
CASES = [
    (of("fedprox", mu=0.0), "fedavg", MODEL),
    (of("fedlc", tau=0.0), "fedavg", MODEL),
    (of("fedala", ala=False), "fedavg", MODEL),
    (of("cwfedavg", aggregation="average"), "fedavg", MODEL),
    (of("fedavg-c", tune_epochs=0), "fedavg", MODEL),
    (of("feduv", lam=0.0, mu=0.0), "fedavg", MODEL),
    (of("moon", mu=0.0), "fedavg", MODEL),
    (of("fedavgm", momentum=0.0), "fedavg", MODEL),
    (of("fedcac", tau=0.0), "fedavg", {"columns": ("pre",)}),
    (of("fedem", components=1), "fedavg", PLAIN),
    (of("fedem", components=1), "fedavg", FAST),
    (of("fedphp", lam=0.0), "fedavg", FAST),
    (of("partialfed", warmup=3), "fedavg", MODEL),
    (of("lg-fedavg", layers="all"), "fedavg", SCORED),
    (of("fedper", shared=["*"]), "fedavg", ALL_SCORED),
    (of("knn-per", share=0), "fedavg", ALL_SCORED),
    ("knn-per", "fedavg", {"columns": ("global",)}),
    (of("apfl", alpha=0.0, adaptive=False), "fedavg", SCORED | ROUNDED),
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
    (of("q-ffl", q=0.0), UNIFORM, ROUNDED),
    (
        of("methods.test_feddbe:Frozen", kappa=0.0),
        "fedavg",
        ALL_SCORED | {"server": ()},
    ),
    (
        of("cwfedavg", distribution="true", layers="all"),
        "fedavg",
        {
            "counts": [[4, 2, 2, 0], [8, 4, 4, 0], [2, 1, 1, 0]],
            "columns": ("pre",),
            **ROUNDED,
        },
    ),
    (CLASS_WISE, "cwfedavg", UPLOADS),
    (of("methods.test_options:Knowing", aggregation="class-wise"), CLASS_WISE, UPLOADS),
    (
        of("cwfedavg", distribution="wdr", wdr=0.0),
        of("cwfedavg", distribution="norm"),
        UPLOADS,
    ),
    (EQUAL_TRACES, of("fedper", weights="uniform"), SCORED | ROUNDED),
    ("methods.test_gpfl:Open", "fedper", SCORED | {"server": (), "clients": ("head",)}),
    (
        of("fedpac", lam=0.0, collaborate=False),
        of("fedrep", head_epochs=1),
        ALL_SCORED,
    ),
    (of("fedrep", head_epochs=0), "fedbabu", MODEL),
    (of("fedprox-c", tune_epochs=0), "fedprox", MODEL),
    (of("fedprox-c", mu=0.0, tune_epochs=2), of("fedavg-c", tune_epochs=2), MODEL),
    (of("diversifed", lam=0.0), "local", OWN | SCORED),
    (of("mr-mtl", lam=0.0), "local", OWN | SCORED),
    (of("fedamp", lam=0.0), "local", OWN),
    (of("fedproto", lam=0.0), "local", OWN),
    (of("fedtgp", lam=0.0, server_epochs=1), "local", OWN),
    ("fedproto", "local", OWN | FIRST),
    (of("fedtgp", server_epochs=1), "local", OWN | FIRST),
    (LOCAL | {"draw": "round"}, "local", OWN | ROUNDED),
    (LOCAL | {"draw": "batch"}, "local", OWN | ROUNDED),
    # without candidates, and with zero losses, so that no model is better
    (of("fedfomo", validation=0.0, received=0), "local", OWN),
    (of("fedfomo", validation=0.0), "local", OWN),
    ("methods.test_lg_fedavg:Apart", "local", OWN | {"clients": ("body=model",)}),
    (
        of("apfl", alpha=1.0, adaptive=False),
        "local",
        OWN | ROUNDED | {"clients": ("personal=model",)},
    ),
]


@pytest.mark.parametrize(("one", "other", "keys"), CASES)
def test_a_method_is_another(equal_runs, one, other, keys):
    equal_runs(one, other, **keys)


@pytest.mark.parametrize(
    "name",
    [
        of("cfl", eps1=0.0, quiet_rounds=0),
        of("ifca", clusters=1),
        of("pfedsim", warmup=1.0),
    ],
)
def test_the_models_of_a_server_are_fedavgs(federate, name):
    part = {"participation": {"fraction": 0.4}}
    found = federate(name, **part).server["models"]
    assert (found == federate("fedavg", **part).server["model"]).all()
