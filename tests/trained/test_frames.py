from dataclasses import replace

import numpy as np
from recorded import sparse
from refusals import expect_refusal

import hpcfl
from hpcfl.storage import results
from hpcfl.trained import frames, loading


def test_a_row_for_each_round(make_run):
    frame = loading.load_run(make_run()).rounds()
    assert frame.index.tolist() == [1, 2, 3, 4] and frame.index.name == "round"
    assert frame.loc[3, "post/weighted"] == 0.875
    assert np.isnan(frame.loc[4, "post/weighted"])
    assert frame["final"].tolist()[-1] == 1
    assert not any(name.startswith("clients/") for name in frame)


def test_a_row_for_each_round_and_client():
    found = results.Results(
        static={"train_counts": np.array([[8, 0], [0, 4], [1, 1]])},
        rounds=np.array([2, 5]),
        values=sparse(
            {
                "clients/pre/correct": np.array([[1.0, 2, np.nan], [3, 4, 0]]),
                "clients/pre/total": np.array([[4.0, 4, np.nan], [4, 4, 0]]),
                "clients/pre/loss": np.array([[2.0, 4, np.nan], [6, 8, 0]]),
                "pre/weighted": np.ones(2),
            }
        ),
    )
    frame = frames.make_clients(found)
    assert frame.index.names == ["round", "client"] and len(frame) == 5
    assert frame.loc[(5, 1), "pre/accuracy"] == 1
    assert frame.loc[(2, 0), "pre/accuracy"] == 0.25
    # the mean over the client's samples, as in the data frame of rounds
    assert frame.loc[(2, 0), "pre/loss"] == 0.5
    # client 2 has no number in round 2, and no sample in round 5
    assert frame["pre/accuracy"].isna().tolist() == [False] * 4 + [True]
    assert frame.loc[(5, 2), "train_samples"] == 2 and "name" not in frame
    named = frames.make_clients(
        replace(found, header={"clients": ["ann", "bob", "eve"]})
    )
    assert named.loc[5, "name"].tolist() == ["ann", "bob", "eve"]


def test_a_row_for_each_run_also_of_a_sweep(make_run, tmp_path):
    make_run("sweep/local", "local", primary="post")
    make_run("sweep/fedavg")
    make_run("alone", finished=False)
    (tmp_path / "no run").mkdir()
    frame = hpcfl.load_all(tmp_path / "*")
    names = [name.removeprefix(f"{tmp_path}/") for name in frame.index]
    assert names == ["alone", "sweep/fedavg", "sweep/local"]
    assert frame["method.name"].tolist() == ["fedavg", "fedavg", "local"]
    assert frame["best"].tolist() == [0.75, 0.75, 0.875]
    assert frame["column"].tolist()[-1] == "post"
    assert frame["best_round"].tolist() == [2, 2, 3]
    assert frame["training.lr"].tolist() == [0.005] * 3
    assert frame["tail"].tolist() == frame["last"].tolist()  # one of four rounds
    assert (
        len(hpcfl.load_all([tmp_path / "alone", f"{tmp_path}/al*"])) == 1
    )  # a run counts once


def test_the_final_runs_of_a_tuning_have_rows(make_run, tmp_path):
    for sweep in ("search", "final", "untuned"):
        make_run(f"tuning/{sweep}/fedavg")
    (tmp_path / "tuning" / "tune.json").write_text("{}")
    [name] = hpcfl.load_all(tmp_path / "*").index
    assert name == f"{tmp_path}/tuning/final/fedavg"


def test_a_folder_with_brackets_in_its_name_is_no_pattern(make_run, tmp_path):
    named, other = make_run("run[1]"), make_run("run1")
    assert hpcfl.load_all(named).index.tolist() == [str(named)]
    assert hpcfl.load_all(f"{tmp_path}/run[0-9]").index.tolist() == [str(other)]


def test_the_tail_is_the_mean_that_counts(make_run):
    run = loading.load_run(make_run("local", "local", primary="post"))
    tail = {"rounds": [3, 4], "pre": 0.5, "post": 0.7}
    moved = replace(run)
    vars(moved)["summary"] = replace(run.summary, tail=tail)
    assert moved.row()["tail"] == 0.7 != run.row()["tail"]


def test_a_pattern_without_runs_is_refused(tmp_path):
    with expect_refusal(r"nothing\*: "):
        hpcfl.load_all(f"{tmp_path}/nothing*")
