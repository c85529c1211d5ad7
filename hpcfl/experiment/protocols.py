"""The experimental settings of four papers as defaults, such as ``protocol =
"fedala"``.

A protocol is a list of rules: if the experiment has certain values, certain others are
its defaults. Later rules win over earlier ones, the user's own keys over all. Sources:
protocols.md B, C, E1 and the hyperparameters that the papers print for their baselines.
"""

from collections.abc import Callable, Mapping
from typing import Any

from hpcfl.errors import UserError
from hpcfl.experiment.plugins import nearest

Setting = dict[str, Any]  # dotted key → value
Rule = tuple[
    Setting, Setting
]  # if the first holds (one value of a tuple), the second are the defaults

# the settings that FedALA and cwFedAvg share: merged splits, 75/25, one partition, 20
# clients, 1 epoch of SGD
MERGED: list[Rule] = [
    (
        {},
        {
            "rounds": 1000,
            "partition.scheme": "dirichlet",
            "partition.clients": 20,
            "partition.seed": 1,
            "partition.train": 0.75,
            "participation.fraction": 1.0,
            "training.epochs": 1,
            "training.batch_size": 10,
            "training.optimizer": "sgd",
            "training.lr": 0.005,
            "evaluation.metric": "weighted",
            "model.name": "cnn",
        },
    ),
    ({"data.dataset": "ag-news"}, {"model.name": "fasttext"}),
    ({"partition.scheme": "dirichlet"}, {"partition.beta": 0.1}),
    ({"partition.scheme": "pathological"}, {"partition.classes_per_client": 2}),
    (
        {"partition.scheme": "pathological", "data.dataset": "cifar-100"},
        {"partition.classes_per_client": 10},
    ),
]

PROTOCOLS: dict[str, list[Rule]] = {
    "cwfedavg": [  # ICCV 2025; version 1 of the paper has a learning rate of 0.001
        *MERGED,
        ({"method.name": "ifca", "data.dataset": "mnist"}, {"method.clusters": 4}),
        ({"method.name": "ifca", "data.dataset": "cifar-10"}, {"method.clusters": 2}),
        ({"method.name": "ifca", "data.dataset": "cifar-100"}, {"method.clusters": 8}),
        ({"method.name": "ifca", "data.dataset": "ag-news"}, {"method.clusters": 2}),
    ],
    "fedala": [
        *MERGED,
        ({}, {"rounds": 2000}),
        ({"data.dataset": ("mnist", "ag-news")}, {"training.lr": 0.1}),
        ({"model.name": "resnet18"}, {"training.lr": 0.1}),
    ],
    "diversifed": [
        (
            {},
            {
                "rounds": 500,
                "partition.scheme": "pathological-pairs",
                "partition.clients": 40,
                "participation.fraction": 1.0,
                "training.epochs": 10,
                "training.batch_size": 100,
                "training.optimizer": "adam",
                "training.lr": 0.001,
                "evaluation.metric": "mean",
                "model.name": "lenet",
            },
        ),
        # plain steps do not use Adam's rate but FedALA's, which pFedMe's authors use
        # as well
        ({"training.optimizer": "adam"}, {"training.plain_lr": 0.005}),
        ({"method.name": "pfedme"}, {"method.personal_lr": 0.09}),
        ({"data.dataset": "fashion-mnist"}, {"model.name": "mlp"}),
        ({"data.dataset": "cifar-100"}, {"model.name": "resnet8"}),
        (
            {"data.dataset": "pathmnist"},
            {"partition.scheme": "grouped", "partition.clients": 20},
        ),
        (
            {"partition.scheme": ("pathological-pairs", "client-dirichlet", "grouped")},
            {"partition.train_samples": 500, "partition.test_samples": 100},
        ),
        (
            {
                "partition.scheme": (
                    "pathological-pairs",
                    "client-dirichlet",
                    "grouped",
                ),
                "data.dataset": "fashion-mnist",
            },
            {"partition.train_samples": 300},
        ),
        ({"partition.scheme": "client-dirichlet"}, {"partition.beta": 0.1}),
        ({"model.name": "mlp"}, {"model.hidden": [64]}),
        (
            {"method.name": "diversifed"},
            {"method.lam": 2.0, "method.alpha": 1.0, "method.tau": 1.0},
        ),
        # the temperatures that were best in the paper's sweeps, Tables IV to VI
        *(
            (
                {
                    "method.name": "diversifed",
                    "partition.scheme": "client-dirichlet",
                    "data.dataset": dataset,
                    "partition.beta": beta,
                },
                {"method.tau": tau},
            )
            for dataset, best in {
                "cifar-10": {0.1: 1.0, 0.5: 0.7, 1.0: 0.5},
                "fashion-mnist": {0.1: 0.9, 0.5: 0.6, 1.0: 0.5},
                "cifar-100": {0.01: 1.0, 0.1: 0.6, 0.5: 0.5},
            }.items()
            for beta, tau in best.items()
        ),
        (
            {"method.name": "fedproto", "data.dataset": ("cifar-10", "cifar-100")},
            {"method.lam": 0.1},
        ),
        (
            {"method.name": "fedcac", "data.dataset": "cifar-100"},
            {"method.tau": 0.4, "method.beta": 170.0},
        ),
    ],
    "fednh": [  # numbers of the paper's code where the text has none
        (
            {},
            {
                "rounds": 200,
                "data.normalise": "statistics",
                "data.augment": True,
                "partition.scheme": "dirichlet-min",
                "partition.clients": 100,
                "participation.fraction": 0.1,
                "training.epochs": 5,
                "training.batch_size": 64,
                "training.optimizer": "sgd",
                "training.lr": 0.01,
                "training.lr_decay": 0.99,
                "training.momentum": 0.9,
                "training.weight_decay": 1e-5,
                "training.clip": 10.0,
                "training.buffers": "average",
                "model.name": "conv2cifar",
                "method.weights": "uniform",
                "evaluation.clients": "cohort",
                "evaluation.metric": "pm_l",
            },
        ),
        ({"partition.scheme": "dirichlet-min"}, {"partition.beta": 0.3}),
        ({"training.optimizer": "adam"}, {"training.momentum": 0.0}),
        (
            {"data.dataset": "tiny-imagenet"},
            {"model.name": "resnet18", "training.weight_decay": 1e-3},
        ),
        ({"model.name": "resnet18"}, {"model.norm": "group"}),
        (
            {"model.name": "resnet18", "method.name": "fednh"},
            {"model.norm": "none", "method.scale": 20.0},
        ),
        (
            {"method.name": ("fedavg", "fedper", "fedrep", "creff")},
            {"evaluation.score": "post"},
        ),
        (
            {"method.name": "ditto"},
            {
                "method.lam": 0.75,
                "method.personal_epochs": 5,
                "method.anchor": "trained",
            },
        ),
        # 20 rounds for each client, its rate decaying with its own rounds
        ({"method.name": "local"}, {"rounds": 20, "participation.fraction": 1.0}),
        ({"method.name": "fedrep"}, {"method.head_epochs": 10}),
        (
            {"method.name": "fedrod"},
            {"method.personal": "hyper", "method.order": "separate"},
        ),
        (
            {"method.name": "fedrod", "data.dataset": "tiny-imagenet"},
            {"method.personal": "linear"},
        ),
        ({"method.name": "fedproto"}, {"method.lam": 0.1}),
        (
            {"method.name": "fedbabu"},
            {"method.tune_from": "local", "evaluation.clients": "all"},
        ),
    ],
}

# the last rules of every protocol
EVERYWHERE: list[Rule] = [
    (
        {"method.name": "cwfedavg", "data.dataset": ("mnist", "cifar-10")},
        {"method.wdr": 10.0},
    ),
    ({"method.name": "cwfedavg", "data.dataset": "cifar-100"}, {"method.wdr": 1000.0}),
    (
        {"method.name": "cwfedavg", "data.dataset": "tiny-imagenet"},
        {"method.wdr": 2000.0},
    ),
]

# values that neither a paper nor its code prints: if all of the first holds, `hpcfl
# check` prints the second
UNSOURCED: list[tuple[Setting, str]] = [
    (
        {"method.name": "cwfedavg", "data.dataset": "ag-news", "method.wdr": 10.0},
        "method.wdr = 10.0: no λ was printed for AG News; this is CIFAR-10's",
    ),
    (
        {
            "method.name": "diversifed",
            "partition.scheme": ("pathological-pairs", "grouped"),
            "method.tau": 1.0,
        },
        "method.tau = 1.0: no τ was printed for two classes a client or groups; this is the most uneven "
        "Dirichlet's",
    ),
    (
        {
            "method.name": "fedcac",
            "data.dataset": ("fashion-mnist", "pathmnist"),
            "method.tau": 0.5,
            "method.beta": 100.0,
        },
        "method.tau = 0.5, method.beta = 100.0: printed for CIFAR-10, not for this data set",
    ),
    (
        {"method.name": ("fedavg-c", "fedprox-c"), "method.tune_epochs": 10},
        "method.tune_epochs = 10: FedALA does not print it; its times a round suggest about 14",
    ),
    (
        {
            "training.optimizer": "adam",
            "training.plain_lr": 0.005,
            "method.name": ("per-fedavg", "ditto", "partialfed"),
        },
        "training.plain_lr = 0.005: DiversiFed prints no learning rate for plain steps; this is FedALA's",
    ),
]


def unsourced(setting: Setting) -> list[str]:
    """Return lines about values of a resolved configuration, by dotted keys, without a
    source.
    """
    return [remark for when, remark in UNSOURCED if _holds(when, setting)]


def complete(table: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment's nested table with its protocol's defaults.

    Raises UserError for an unknown protocol.
    """
    protocol = table.get("protocol")
    if protocol is None:
        return table
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise UserError(
            f"protocol = {protocol!r} is unknown{nearest(str(protocol), PROTOCOLS)}"
        )
    own, defaults = flat(table), Setting()
    for when, then in [*PROTOCOLS[protocol], *EVERYWHERE]:
        if _holds(when, defaults | own):
            defaults |= then
    return _with_defaults(table, defaults)


def _holds(when: Setting, setting: Setting) -> bool:
    """Return whether a setting has the values of ``when``, of a tuple one of them."""
    return all(
        setting.get(key) in (value if isinstance(value, tuple) else (value,))
        for key, value in when.items()
    )


def flat(
    table: Mapping[str, Any],
    prefix: str = "",
    is_value: Callable[[Mapping[str, Any]], bool] = lambda table: False,
) -> Setting:
    """Return a nested table by dotted keys.

    is_value: whether an inner table is a value and stays whole.
    """
    setting: Setting = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not is_value(value):
            setting |= flat(value, f"{prefix}{key}.", is_value)
        else:
            setting[prefix + key] = value
    return setting


def _with_defaults(table: dict[str, Any], defaults: Setting) -> dict[str, Any]:
    """Return a copy of a nested table with ``defaults`` for its missing keys.

    A section that is no table stays as it is; a later check refuses it.
    """
    result = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in table.items()
    }
    for dotted, value in defaults.items():
        section, _, key = dotted.partition(".")
        if not key:
            result.setdefault(section, value)
        elif isinstance(result.setdefault(section, {}), dict):
            result[section].setdefault(key, value)
    return result
