import csv
from collections import Counter

import pytest
from papers import PAPERS, read_paper
from places import ROOT

from hpcfl.experiment import config, experiment_file


def test_overrides_keep_their_types():
    table = {}
    for override in (
        "a.b.c=1",
        "a.x=0.5",
        "word=fedavg",
        "list=[1, 2]",
        "yes=true",
        'text="1"',
    ):
        experiment_file.assign(table, *experiment_file.parse_override(override))
    assert table == {
        "a": {"b": {"c": 1}, "x": 0.5},
        "word": "fedavg",
        "list": [1, 2],
        "yes": True,
        "text": "1",
    }


def test_a_mark_of_the_byte_order_is_no_part_of_a_file(tmp_path):
    for name, text in (("a.toml", "seed = 3"), ("a.json", '{"seed": 3}')):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8-sig")
        assert experiment_file.read_table(path) == {"seed": 3}


ACCURACIES = ("acc", "acc_approx", "acc_joining_clients_only", "GM", "PM(V)", "PM(L)")


def parsed(protocol, method="fedavg", dataset="cifar-10", **keys):
    table = {"protocol": protocol}
    for key, value in {"method.name": method, "data.dataset": dataset, **keys}.items():
        experiment_file.assign(table, key, value)
    return config.parse(table).resolved()


def resolved(protocol, **keys):
    return experiment_file.flatten(parsed(protocol, **keys))


@pytest.mark.parametrize(
    ("protocol", "keys", "expected"),
    [
        # for a data set, and for a model with it
        ("fedala", {}, {"training.lr": 0.005}),
        ("fedala", {"dataset": "mnist"}, {"training.lr": 0.1}),
        ("fedala", {"dataset": "ag-news"}, {"model.name": "fasttext"}),
        (
            "fedala",
            {"dataset": "tiny-imagenet", "model.name": "resnet18"},
            {"training.lr": 0.1, "model.norm": "batch"},
        ),
        # for a data set with a scheme, and a scheme with a method
        (
            "fedala",
            {"dataset": "cifar-100", "partition.scheme": "pathological"},
            {"partition.classes_per_client": 10},
        ),
        (
            "diversifed",
            {
                "method": "diversifed",
                "partition.scheme": "client-dirichlet",
                "partition.beta": 0.5,
            },
            {"method.tau": 0.7},
        ),
        # for a method, alone, with a data set, and with keys that it does not read
        ("diversifed", {"method": "diversifed"}, {"method.tau": 1.0}),
        (
            "cwfedavg",
            {"dataset": "cifar-100", "method": "cwfedavg"},
            {"method.wdr": 1000.0},
        ),
        (
            "diversifed",
            {"method": "per-fedavg"},
            {"training.plain_lr": 0.005, "method.alpha": None},
        ),
        ("diversifed", {"training.optimizer": "sgd"}, {"training.plain_lr": None}),
        # a rule for a data set and a method has precedence over one for the data set
        (
            "fednh",
            {"dataset": "tiny-imagenet", "method": "fednh"},
            {"model.name": "resnet18", "model.norm": "none", "method.scale": 20.0},
        ),
        ("fednh", {"dataset": "tiny-imagenet"}, {"model.norm": "group"}),
    ],
)
def test_values_follow_data_model_and_method(protocol, keys, expected):
    found = resolved(protocol, **keys)
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("protocol", "keys", "word"),
    [
        ("cwfedavg", {"method": "cwfedavg", "dataset": "ag-news"}, "method.wdr = 10.0"),
        (
            "cwfedavg",
            {"method": "cwfedavg", "dataset": "ag-news", "method.wdr": 3.0},
            None,
        ),
        ("cwfedavg", {"method": "cwfedavg", "dataset": "cifar-10"}, None),
        ("diversifed", {"method": "per-fedavg"}, "training.plain_lr = 0.005"),
    ],
)
def test_values_without_a_source_are_named(protocol, keys, word):
    found = experiment_file.list_unsourced(parsed(protocol, **keys))
    assert len(found) == bool(word) and (word or "") in "".join(found)


def test_a_users_keys_take_precedence():
    found = resolved(
        "fednh",
        **{
            "rounds": 7,
            "training.lr": 0.5,
            "partition.scheme": "iid",
            "model.name": "mlp",
            "evaluation.metric": "mean",
        },
    )
    assert (found["rounds"], found["training.lr"], found["model.name"]) == (
        7,
        0.5,
        "mlp",
    )
    assert found["partition.scheme"] == "iid"
    assert "partition.beta" not in found
    assert found["partition.clients"] == 100


def test_a_protocol_is_no_part_of_a_runs_identity():
    by_name = config.parse(
        {
            "protocol": "fedala",
            "method": {"name": "fedavg"},
            "data": {"dataset": "cifar-10"},
        }
    )
    by_hand = by_name.resolved() | {"protocol": None}
    assert config.parse(by_hand).fingerprint() == by_name.fingerprint()


@pytest.fixture(scope="module")
def cells():
    """Return the validated cells of every file of the papers, by dotted key."""
    found = {}
    for path in PAPERS:
        read, _ = read_paper(path)
        found[path.stem] = [
            experiment_file.flatten(one.resolved()) for one in read.values()
        ]
    return found


def reported():
    """Return the accuracies in results/reported.csv; their settings are written as for
    ``--set``.
    """
    with open(ROOT / "results" / "reported.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row["metric"] in ACCURACIES]


def wanted(row):
    setting = dict(
        experiment_file.parse_override(part) for part in row["setting"].split()
    )
    return (
        setting | {"method.distribution": "true"}
        if setting.get("method.distribution") is True
        else setting
    )


def test_all_reported_accuracies_are_stored():
    assert len(PAPERS) == 34
    assert Counter(row["paper"] for row in reported()) == {
        "cwfedavg": 120,
        "cwfedavg-iccv": 45,
        "diversifed": 247,
        "fedala": 246,
        "fednh": 195,
    }


@pytest.mark.slow
def test_every_reported_accuracy_is_a_cell_of_its_papers_files(cells):
    missing = []
    for row in reported():
        setting, own = (
            wanted(row),
            [
                cell
                for name, some in cells.items()
                if name.startswith(row["paper"])
                for cell in some
            ],
        )
        if not any(
            all(cell.get(key) == value for key, value in setting.items())
            for cell in own
        ):
            missing.append((row["paper"], row["table"], row["setting"]))
    assert not missing


@pytest.mark.slow
def test_all_runs_of_a_file_are_different(cells):
    for name, some in cells.items():
        identities = [
            repr(
                sorted(
                    (key, repr(value)) for key, value in cell.items() if key != "name"
                )
            )
            for cell in some
        ]
        assert len(set(identities)) == len(identities), name
