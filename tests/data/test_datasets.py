"""Data sets by name, their normalisation and the keys of [data]."""

import numpy as np
import pytest
import torch
from playing import prepare_alone
from refusals import expect_refusal
from user_data import load

from hpcfl import models
from hpcfl.data import datasets
from hpcfl.data.datasets import hold_out
from hpcfl.experiment import config
from hpcfl.report import configuration


def load_named(name, **keys):
    return datasets.load(config.Data(dataset=name, **keys))


def test_data_sets_are_listed_by_their_files():
    names = datasets.list_names()
    assert {"digits", "fashion-mnist", "npz-folders", "pfllib"} <= set(names)
    assert not any("_" in name or name == "base" for name in names)


@pytest.mark.parametrize("per_channel", [False, True])
def test_normalise_subtracts_the_mean_and_divides_by_the_deviation(per_channel):
    mean, std = ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)) if per_channel else ((0.5,), (0.25,))
    x = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    data = datasets.Dataset("x", x, torch.zeros(4).long(), 2, mean=mean, std=std)
    shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    torch.testing.assert_close(data.normalise(x), (x / 255 - shift) / scale)


def test_a_missing_root_is_refused_with_the_download(monkeypatch):
    monkeypatch.delenv("HPCFL_DATA", raising=False)
    words = r"data\.root .*\$HPCFL_DATA.* hpcfl data download cifar-100 --root"
    with expect_refusal(words):
        load_named("cifar-100")


def test_a_missing_file_is_named_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with expect_refusal(f"^data.file = 'sub/x' .{tmp_path}/sub/x.*working folder$"):
        load_named("leaf", file="sub/x")


def test_an_unknown_name_is_refused_with_the_nearest():
    with expect_refusal(r"'cifar10' .*'cifar-10'"):
        load_named("cifar10")


def test_built_in_data_is_not_downloaded(tmp_path):
    with expect_refusal("'digits'"):
        datasets.download("digits", tmp_path)


def test_a_part_of_the_samples_for_a_quick_try():
    """The spiral has 6 classes of 3,000 training and 100 test points. Of 300 points
    each class has 50; of the test points a sixtieth, 10, remains, with 1 or 2 of each
    class.
    """
    whole = load_named("spiral")
    part = load_named("spiral", samples=300)
    assert (len(part.y), part.official_test, part.classes) == (310, 10, 6)
    assert np.bincount(part.y[:300]).tolist() == [50] * 6
    assert set(np.bincount(part.y[300:]).tolist()) == {1, 2}
    places = [torch.where((whole.x == x).all(dim=1))[0].item() for x in part.x]
    assert places == sorted(set(places)) and places[299] < 18_000 <= places[300]
    assert whole.y[places].equal(part.y)
    assert load_named("spiral", samples=300).x.equal(part.x)
    [note] = part.notes
    assert "data.samples = 300: " in note
    assert " of 18,000 " in note and " 10 of 600 " in note


def test_redraw_gives_each_partition_another_subset():
    """Without ``data.redraw`` the draw of seed 0 is used for all partitions."""
    data = config.Data(samples=200, redraw=True)
    fixed = datasets.load(config.Data(samples=200), seed=3)
    draws = [datasets.load(data, seed) for seed in (0, 3, 4)]
    assert draws[0].x.equal(fixed.x)
    assert datasets.load(data, 3).x.equal(draws[1].x)
    assert not draws[1].x.equal(draws[2].x)
    counts = [np.bincount(draw.y) for draw in draws]
    assert all(np.ptp(of_class) <= 1 for of_class in np.transpose(counts))
    assert {len(draw.y) for draw in draws} == {200}


@pytest.mark.parametrize(
    "data, partition",
    [({}, {}), ({"samples": 200}, {"file": "partition.h5"})],
)
def test_redraw_without_subset_or_with_partition_file_is_refused(data, partition):
    table = {"method": {"name": "fedavg"}, "partition": partition}
    with expect_refusal(r"^configuration: data.redraw = true: "):
        config.parse({**table, "data": {**data, "redraw": True}})


def test_a_part_of_samples_without_an_official_split():
    part = load_named("digits", samples=200)
    assert (len(part.y), part.official_test) == (200, 0)
    [note] = part.notes
    assert "data.samples = 200: " in note and " of 1,797 " in note
    with expect_refusal(r"data.samples = 1797"):
        load_named("digits", samples=1797)


def test_a_part_of_the_samples_retains_a_single_test_sample(tmp_path):
    rows = "".join(f"{x / 8},{x % 2},train\n" for x in range(20))
    (tmp_path / "one.csv").write_text(f"x,label,split\n{rows}0.3,1,test\n")
    part = load("csv", tmp_path / "one.csv", samples=10)
    assert (len(part.y), part.official_test) == (11, 1)
    [note] = part.notes
    assert " 1 of 1 " in note


def test_a_part_of_the_samples_is_another_run():
    table = {"method": {"name": "fedavg"}}
    whole = config.parse(table)
    part = config.parse({**table, "data": {"samples": 200}})
    assert whole.fingerprint() != part.fingerprint()
    table |= {"data": {"samples": 9}, "partition": {"scheme": "by-client"}}
    with expect_refusal(r"data\.samples = 9: .*partition\.scheme = 'by-client'"):
        config.parse(table)


LETTERS = {
    "method": {"name": "fedavg"},
    "data": {"dataset": "emnist", "split": "letters"},
}


def test_keys_of_a_data_set_are_keys_of_its_section():
    letters = config.parse(LETTERS)
    resolved = letters.resolved()
    assert resolved["data"]["split"] == "letters" and "options" not in resolved["data"]
    assert config.parse(resolved).resolved() == resolved
    line = "# data set of EMNIST (byclass | bymerge | balanced | letters |"
    assert line in configuration.write_toml(letters)
    table = {key: dict(section) for key, section in LETTERS.items()}
    config.choose(table, "data.dataset", "mnist")
    assert table["data"] == {"dataset": "mnist"}
    balanced = config.parse({**LETTERS, "data": {"dataset": "emnist"}})
    assert balanced.fingerprint() != letters.fingerprint()


def test_keys_that_do_not_fit_the_data_are_refused():
    with expect_refusal(r"data\.dataset = 'npz' .*data\.file"):
        load_named("npz")
    with expect_refusal(r"'digits' .*data\.file = 'x'"):
        load_named("digits", file="x")
    with expect_refusal(r"data\.augment = true"):
        load("spiral", ".", augment=True)


def test_test_samples_that_a_partition_cuts_are_not_in_the_statistics(tmp_path):
    file = tmp_path / "t.npz"
    x = np.random.default_rng(0).random((40, 3)).astype(np.float32)
    np.savez(file, x=x, y=np.arange(40) % 2, client=np.arange(40) % 4)
    data = {"dataset": "npz", "file": str(file), "normalise": "statistics"}
    keys = {
        "method": {"name": "local"},
        "data": data,
        "partition": {"scheme": "by-client", "clients": 3},
        "newcomers": {"clients": 1},
    }
    prepared = prepare_alone(keys)
    trained = x[np.concatenate(prepared.data.split.train[:3])]
    normalise = prepared.resources.samples.normalise
    assert normalise.mean == pytest.approx(trained.mean(axis=0), abs=1e-6)
    assert normalise.std == pytest.approx(trained.std(axis=0), abs=1e-6)


def test_statistics_of_images_are_those_of_channels():
    keys = config.Data(normalise="statistics")
    digits = datasets.load(keys)
    assert digits.std == (0.5,)
    held = np.arange(100)
    data = datasets.standardise(digits, keys, [held])
    images = data.normalise(data.x[:100])
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_a_model_of_numbers_refuses_token_ids():
    mlp = config.parse({"method": {"name": "local"}}).model
    with expect_refusal(r"'mlp' .*float32.*'one-hot'"):
        models.build(mlp, (64,), 10, vocabulary=17)


def test_a_failing_model_of_a_user_is_named_with_token_ids(tmp_path):
    x = np.ones((8, 3), int)
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(8) % 2)
    keys = {
        "method": {"name": "local"},
        "data": {"dataset": "npz", "file": str(tmp_path / "t.npz")},
        "model": {"name": "tiny:zero_head"},
        "partition": {"scheme": "iid", "clients": 2},
    }
    with expect_refusal("2×3 token ids"):
        prepare_alone(keys)


LABELS = np.repeat(np.arange(4), 50)
TRAIN = [
    np.arange(200),
    np.array([0, 1, 2, 3, 4, 60, 61, 62, 63, 64, 199]),
    np.array([7]),
    np.array([8, 9]),
]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_parts_are_disjoint_and_complete_and_classes_keep_their_shares(share):
    train, held_out = hold_out(TRAIN, LABELS, share, seed=1)
    for whole, remaining, out in zip(TRAIN, train, held_out, strict=True):
        assert np.array_equal(np.sort(np.concatenate([remaining, out])), whole)
        assert (np.diff(out) > 0).all() and (np.diff(remaining) > 0).all()
        for label in range(4):
            expected = share * (LABELS[whole] == label).sum()
            if len(whole) > 2:
                assert abs((LABELS[out] == label).sum() - expected) <= 1
        drawn = max(1, round(share * len(whole)))
        assert len(remaining) >= 1 and len(out) == min(drawn, len(whole) - 1)


def test_held_out_samples_are_drawn_by_seed_and_client():
    same = [TRAIN[0], TRAIN[0]]
    first, again, other = (hold_out(same, LABELS, 0.2, seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(first[0], first[1])
