"""Tuning from start to end in this process: spent budget, selected trials, and results."""

import csv
import json
import shlex
import shutil

import numpy as np
import pytest
from playing import call, set_keys

from hpcfl.cluster.status import list_statuses
from hpcfl.commands import tune
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.storage import tune_folder
from hpcfl.trained import loading
from hpcfl.tuning import halving, plan
from hpcfl.tuning.plan import Cell

pytestmark = pytest.mark.slow

# 8, 8, 9 and 8 samples per client, of which a quarter, rounded to 2 of each class, is
# held out for selection
EXPERIMENT = """
name = "t"
rounds = 30
[data]
dataset = "tiny:blobs"
[partition]
scheme = "tiny:Counts"
clients = 3
counts = [[8, 8, 0, 0], [0, 8, 8, 0], [8, 0, 0, 8]]
[model]
name = "mlp"
hidden = [4]
[training]
batch_size = 4
validation = 0.25
[tune]
methods = {methods}
budget = {budget}
trials = 2
rungs = 2
search_seeds = [7]
final_seeds = [0]
search = {search}
"""
RATES = '{ "training.lr" = { low = 0.01, high = 0.3, log = true } }'
SAMPLES = 3 * 12  # training samples of three clients, after a quarter is held out


def play(place, methods, budget, search):
    """Run ``hpcfl tune`` on a file in this folder and return its code."""
    file = place / "t.toml"
    names = json.dumps(methods)
    file.write_text(EXPERIMENT.format(methods=names, budget=budget, search=search))
    return call("tune", file)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Return ``tuned(methods, …)``, which runs ``hpcfl tune`` and returns its folder
    after it ended with a given code.
    """
    monkeypatch.chdir(tmp_path)

    def ended(methods, budget=8 * SAMPLES, search=RATES, code=0):
        assert play(tmp_path, methods, budget, search) == code
        return tmp_path / "runs" / "t"

    return ended


@pytest.fixture(scope="module")
def fedavg_tuned(tmp_path_factory):
    """Return the folder in which ``tuned(["fedavg"])`` ran; it must not be changed."""
    place = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        assert play(place, ["fedavg"], 8 * SAMPLES, RATES) == 0
    return place


@pytest.fixture
def again(fedavg_tuned, tmp_path, monkeypatch):
    """Return ``again(*paths)``, which deletes these paths in the folder and returns the
    code of the same command.
    """
    shutil.copytree(fedavg_tuned, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def ended(*paths, budget=8 * SAMPLES):
        for path in paths:
            gone = tmp_path / "runs" / "t" / path
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return play(tmp_path, ["fedavg"], budget, RATES)

    return ended


@pytest.mark.parametrize("path", ["chosen", "untuned", "final/fedavg,tuned,seed=0"])
def test_a_tuning_continues_after_its_files_were_deleted(again, tmp_path, path):
    table = (tmp_path / "runs" / "t" / "tuned.csv").read_text()
    assert again(path) == 0
    assert (tmp_path / "runs" / "t" / "tuned.csv").read_text() == table
    assert list((tmp_path / "runs" / "t" / "chosen").iterdir())


def test_lost_search_results_name_the_folder_to_delete(again, tmp_path, printed_errors):
    """The runs have continued since, so the scores of their first rounds are lost."""
    table = (tmp_path / "runs" / "t" / "tuned.csv").read_text()
    assert again("results") == 2
    assert "delete the run's folder" in printed_errors()
    assert again("search") == 0
    assert (tmp_path / "runs" / "t" / "tuned.csv").read_text() == table


def test_results_of_a_tuning_that_is_not_known_are_refused(again, printed_errors):
    assert again("tune.json") == 2
    assert "delete" in printed_errors()


@pytest.fixture
def other_draws(monkeypatch):
    """Let the method declare other ranges than when its trials were played."""
    drawn = plan.draw
    monkeypatch.setattr(
        plan,
        "draw",
        lambda *keys: {key: 2 * value for key, value in drawn(*keys).items()},
    )


def test_results_of_other_draws_are_refused(again, other_draws, printed_errors):
    assert again("untuned", "final") == 2
    assert "search/fedavg,trial=0,seed=7: " in (line := printed_errors())
    assert "training.lr" in line


@pytest.mark.parametrize(
    "part", [["final", "--cell", "fedavg,tuned,seed=0"], ["outcome"]]
)
def test_jobs_after_the_search_refuse_other_draws(
    again, other_draws, tmp_path, printed_errors, part
):
    shutil.rmtree(tmp_path / "runs" / "t" / "final")
    assert call("tune", "t.toml", "--stage", *part) == 2
    assert "search/fedavg,trial=" in (line := printed_errors())
    assert "training.lr" in line


def read_csv(path):
    """Return the lines of a table as dictionaries."""
    with open(path) as file:
        return list(csv.DictReader(file))


def rows(folder):
    return {row["method"]: row for row in read_csv(folder / "tuned.csv")}


def result(folder, cell, step):
    return tune_folder.read_result(folder, cell, step)


def test_a_tuning_from_start_to_end_by_hand(fedavg_tuned):
    """Three rounds show that a run costs 36 gradients per round, so 8 rounds are the
    whole run. Two trials run for 4 rounds, one of them for all 8.
    """
    folder = fedavg_tuned / "runs" / "t"
    for trial in (0, 1):
        cell = f"fedavg,trial={trial},seed=7"
        assert result(folder, cell, "cost")["gradients"] == 3 * SAMPLES
        first = result(folder, cell, "rung=0")
        assert (first["rounds"], first["whole"]) == (4, 8)
        assert first["gradients"] == 4 * SAMPLES
    scores = [
        result(folder, f"fedavg,trial={trial},seed=7", "rung=0")["score"]
        for trial in (0, 1)
    ]
    best = int(np.argmax(scores))
    chosen = f"fedavg,trial={best},seed=7"
    last = result(folder, chosen, "rung=1")
    assert (last["rounds"], last["gradients"]) == (8, 8 * SAMPLES)
    assert result(folder, f"fedavg,trial={1 - best},seed=7", "rung=1") is None
    # the score of the selected run is the mean over its last tenth, rounds 9 and later
    run = loading.load_run(folder / "search" / chosen)
    numbers = run.results.get_series(tune.MetricName("weighted", "validation/pre"))
    assert last["score"] == numbers[-1]
    row = rows(folder)["fedavg"]
    assert row["spent"] == str((8 + 4) * SAMPLES) == row["budget"]
    assert float(row["validation"]) == last["score"]
    final = loading.load_run(folder / "final" / "fedavg,tuned,seed=0")
    assert float(row["test"]) == final.summary.tail["pre"]
    assert final.config["rounds"] == 8
    untuned = loading.load_run(folder / "untuned" / "fedavg,untuned,seed=0")
    assert float(row["test_untuned"]) == untuned.summary.tail["pre"]
    # the selected configuration is an experiment file, that of the final run
    written = config.load(folder / "chosen" / "fedavg.toml")
    assert written.fingerprint() == config.fingerprint(final.config)
    with open(folder / "curve.csv") as file:
        curve = [row[1:] for row in csv.reader(file)][1:]
    low, high = sorted([last["score"], scores[1 - best]])
    assert [draws for draws, _ in curve] == ["0", "1", "2"]
    assert float(curve[1][1]) == pytest.approx((low + high) / 2)
    assert float(curve[2][1]) == pytest.approx(low / 4 + 3 * high / 4)
    assert (folder / "curve.png").stat().st_size > 1000


def test_a_search_stops_if_its_first_rounds_exceed_the_budget(tuned, tmp_path, capsys):
    """Three rounds of two trials are 6 · SAMPLES gradients, a budget of B is 1.5 · B."""
    folder = tuned(["fedavg", "local"], budget=3 * SAMPLES, code=1)
    lines = capsys.readouterr().err.splitlines()
    for method in ("fedavg", "local"):
        [line] = [one for one in lines if f"trials of {method} " in one]
        assert f"{6 * SAMPLES} gradients" in line
        assert f"tune.budget = {4 * SAMPLES} " in line
    assert not list((folder / "results").glob("*,rung=*"))
    for changed in ({"code": 2, "search": "{}"}, {"code": 1}):
        tuned(["fedavg", "local"], budget=3 * SAMPLES, **changed)


def mark_measured_runs(folder):
    """Put a file into each measured run, and return these files."""
    marks = [run / "mine.txt" for run in (folder / "search").glob("*,trial=*")]
    for mark in marks:
        mark.touch()
    assert len(marks) == 2
    return marks


def test_a_stopped_search_continues_with_its_measured_rounds(tuned, tmp_path, capsys):
    folder = tuned(["fedavg"], budget=3 * SAMPLES, code=1)
    marks = mark_measured_runs(folder)
    file = tmp_path / "t.toml"
    assert call("tune", file, *set_keys("tune.overspend=true")) == 0
    assert all(mark.exists() for mark in marks)
    row = rows(folder)["fedavg"]
    share = int(row["spent"]) / int(row["budget"])
    assert float(row["spent/budget"]) == share > 1
    assert call("tune", file, *set_keys(f"tune.budget={8 * SAMPLES}")) == 2
    capsys.readouterr()
    assert call("table", folder, "--format", "csv") == 0
    shown = capsys.readouterr().out
    assert "spent/budget" in shown and f"{share:.2f}"[:3] in shown
    assert call("report", folder, "--out", "page.html") == 0
    assert f"<td>{share:.2f}</td>" in (tmp_path / "page.html").read_text()


def test_a_stopped_search_continues_with_another_budget(
    tuned, tmp_path, fedavg_tuned, capsys
):
    """The outcome is that of a search that had this budget from the beginning."""
    folder = tuned(["fedavg"], budget=3 * SAMPLES, code=1)
    marks = mark_measured_runs(folder)
    tuned(["fedavg"], budget=8 * SAMPLES)
    assert all(mark.exists() for mark in marks)
    for name in ("tune.json", "tuned.csv", "results/fedavg,trial=0,seed=7,cost.json"):
        expected = (fedavg_tuned / "runs" / "t" / name).read_text()
        assert (folder / name).read_text() == expected


def test_an_older_tuning_may_continue_beyond_its_budget(again, tmp_path):
    """Its file has no tune.overspend, and the same command continues it."""
    file = tmp_path / "runs" / "t" / "tune.json"
    stored = json.loads(file.read_text())
    assert "overspend" not in stored["tune"]
    stored["tune"]["budget"] = 3 * SAMPLES
    file.write_text(json.dumps(stored))
    assert again(budget=3 * SAMPLES) == 0


def test_a_trial_that_costs_more_than_the_others_counts_with_its_own_cost(
    tuned, printed_errors
):
    """Both trials have four epochs, the untuned configuration has one."""
    search = '{ "training.epochs" = [4] }'
    tuned(["fedavg"], budget=8 * SAMPLES, search=search, code=1)
    assert f"take {2 * 3 * 4 * SAMPLES:,} gradients" in printed_errors()


@pytest.mark.parametrize("overspend", ["true", "false"])
@pytest.mark.parametrize("others", [[], ["notes.txt"]])
def test_a_mistake_before_the_first_run_leaves_no_files(
    tuned, tmp_path, printed_errors, overspend, others
):
    folder = tuned([], code=2)
    for name in others:
        folder.mkdir(parents=True)
        (folder / name).write_text("mine")
    mistake = set_keys("training.batch_size=99", "training.drop_last=true")
    changes = set_keys('tune.methods=["fedavg"]', f"tune.overspend={overspend}")
    assert call("tune", tmp_path / "t.toml", *changes, *mistake) == 2
    assert "training.batch_size = 99" in printed_errors()
    assert folder.exists() == bool(others)
    assert [path.name for path in folder.glob("*")] == others


def test_a_file_to_tune_is_not_run(tuned, tmp_path, printed_errors):
    file = tmp_path / "t.toml"
    file.write_text(EXPERIMENT.format(methods=["fedavg"], budget=9, search="{}"))
    assert call("run", file) == 2
    assert f"hpcfl tune {file}" in printed_errors()


def test_trials_that_need_all_rounds_are_measured_separately(tuned):
    """One of 2/2 + 1/2 = 1.5 whole runs fits, measured by 3 of 30 rounds."""
    folder = tuned(["fedphp"])
    cell = "fedphp,trial=0,seed=7"
    assert result(folder, cell, "cost")["gradients"] == 3 * SAMPLES
    whole = result(folder, cell, "rung=0")
    assert (whole["rounds"], whole["gradients"]) == (8, (3 + 8) * SAMPLES)
    assert (folder / "measured" / cell).is_dir()
    assert rows(folder)["fedphp"]["trials"] == "1"


def test_a_configuration_that_diverges_is_never_chosen(tuned, printed_errors):
    # the draws are the first of the five values and then the second
    folder = tuned(["fedavg"], search='{ "training.lr" = [1e38, 0.1, 0.2, 0.3, 0.4] }')
    lost = result(folder, "fedavg,trial=0,seed=7", "rung=0")
    assert "diverged" in lost["failure"]
    assert (lost["score"], lost["rank"], lost["gradients"]) == (None, None, 0)
    assert rows(folder)["fedavg"]["setting"] == "training.lr = 0.1"
    tuned(["local"], code=2)  # another tuning in the same folder
    assert " --out" in printed_errors()


def test_nothing_is_chosen_if_all_trials_diverge(tuned):
    folder = tuned(["fedavg"], search='{ "training.lr" = [1e38] }')
    row = rows(folder)["fedavg"]
    assert (row["rounds"], row["validation"], row["test"]) == ("", "", "")
    assert row["test_untuned"] != ""
    assert not list((folder / "chosen").iterdir())


def test_gradients_of_diverged_trials_count_as_spent(tuned):
    """Round 3 of the three rounds that measure the cost diverges in both trials."""
    ill = '{ "tiny:Diverges" = { method.since = 3, method.everyone = true } }'
    folder = tuned(["tiny:Diverges"], search=f"{RATES}\noverrides = {ill}")
    assert rows(folder)["tiny:Diverges"]["spent"] == str(2 * 2 * SAMPLES)


def test_a_run_or_a_sweep_is_no_place_for_a_tuning(tuned, tmp_path, printed_errors):
    folder = tmp_path / "runs" / "t"
    folder.mkdir(parents=True)
    for there in ("run.json", "sweep.json"):
        (folder / there).write_text("{}")
        tuned(["fedavg"], code=2)
        assert " --out" in printed_errors()
        (folder / there).unlink()
    assert list(folder.iterdir()) == []


def test_separate_jobs_give_the_same_result(fedavg_tuned, tuned, tmp_path, printed):
    """Each part runs separately, in any order within a rung, as jobs of an array do;
    other commands know the folder's runs.
    """
    shutil.copytree(fedavg_tuned, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "runs" / "t"
    assert [cell.name for cell in list_statuses(folder)] == [
        "fedavg,trial=0,seed=7",
        "fedavg,trial=1,seed=7",
        "fedavg,untuned,seed=7",
        "fedavg,tuned,seed=0",
        "fedavg,untuned,seed=0",
    ]
    runs, [note] = loading.load_runs_below([folder])
    assert [run.label for run in runs] == ["fedavg,tuned,seed=0"]
    assert note.startswith("left out: runs of a search")
    assert len(loading.load_runs_below([folder / "search"])[0]) == 3
    # the same command finds it complete
    before = (folder / "tuned.csv").read_bytes()
    printed()
    tuned(["fedavg"])
    output = printed()
    assert "round" not in output.partition("gradients")[0].replace("rounds", "")
    assert (folder / "tuned.csv").read_bytes() == before
    # the command that it prints next reads the final runs at their place
    further = output.partition("more: hpcfl ")[2].split()
    assert call(*further, "--format", "csv") == 0
    shown = float(next(csv.DictReader(printed().splitlines()))["mean"])
    assert shown == pytest.approx(100 * float(rows(folder)["fedavg"]["test"]))
    assert call("report", folder) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "fedavg,tuned,seed=0" in page and "trial=0" not in page
    whole = {
        path.name: path.read_bytes()
        for path in [*folder.glob("*.csv"), *folder.glob("chosen/*")]
    }
    folder.rename(tmp_path / "whole")
    file = tmp_path / "t.toml"
    cells = ["fedavg,trial=1,seed=7", "fedavg,untuned,seed=7", "fedavg,trial=0,seed=7"]
    parts = [("0", cell) for cell in cells]
    parts += [("1", cell) for cell in cells]
    finals = ["fedavg,untuned,seed=0", "fedavg,tuned,seed=0"]
    parts += [("final", cell) for cell in finals]

    def tune_part(stage, cell):
        return call("tune", file, "--stage", stage, "--cell", cell)

    assert tune_part("1", cells[0]) == 1  # before its rung
    for stage, cell in parts:
        assert tune_part(stage, cell) == 0
    assert call("tune", file, "--stage", "outcome") == 0
    for name, content in whole.items():
        [path] = folder.glob(f"**/{name}")
        assert path.read_bytes() == content
    assert tune_part("0", "fedavg,trial=9,seed=7") == 2


def test_the_next_command_names_a_folder_with_a_space(
    fedavg_tuned, tmp_path, monkeypatch, printed
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(fedavg_tuned / "runs" / "t", "my runs")
    file = fedavg_tuned / "t.toml"
    assert call("tune", file, "--out", "my runs", "--stage", "outcome") == 0
    further = printed().partition("more: hpcfl ")[2]
    assert call(*shlex.split(further)) == 0


REPEATED = [
    "tune.searches=2",
    "tune.trials=2",
    "tune.final_seeds=[0, 1]",
    "evaluation.every=2",
    "evaluation.tune_epochs=[0, 1]",
    'partition.scheme="dirichlet"',
    "partition.beta=1.0",
]
METHODS = ["fedavg", "fedavg at tuned_1"]


def play_repeated(*more):
    return call("tune", "t.toml", *set_keys(*REPEATED), *more)


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    """Return the folder in which two searches ran; it must not be changed."""
    place = tmp_path_factory.mktemp("repeated")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        text = EXPERIMENT.format(methods=json.dumps(METHODS), budget=500, search=RATES)
        text = text.replace("counts = [[8, 8, 0, 0], [0, 8, 8, 0], [8, 0, 0, 8]]\n", "")
        (place / "t.toml").write_text(text)
        assert play_repeated() == 0
    return place


def test_repeated_searches_from_start_to_end(repeated, monkeypatch, printed):
    folder = repeated / "runs" / "t"
    lines = read_csv(folder / "tuned.csv")
    assert [(line["method"], line["search"]) for line in lines] == [
        (method, search) for method in METHODS for search in "01"
    ]
    for line in lines:
        assert 0 < int(line["spent"]) <= int(line["budget"]) == 1.5 * 500
        assert int(line["scoring"]) > 0
    for path in (folder / "search").glob("*,trial=*"):
        run = loading.load_run(path)
        training = np.array(run.results.get_series(tune.MetricName("sample_gradients")))
        training -= np.nan_to_num(
            run.results.get_series(tune.MetricName("scoring_sample_gradients"))
        )
        last = [
            result(folder, path.name, f"rung={rung}")
            for rung in (0, 1)
            if result(folder, path.name, f"rung={rung}")
        ]
        share = (250, 500)[len(last) - 1]
        assert training.sum() == last[-1]["gradients"] <= share
        # no further round would fit
        assert last[-1]["gradients"] + training.max() > share
    finals = [loading.load_run(path) for path in (folder / "final").glob("*,seed=*")]
    of_entry = [run for run in finals if run.config["evaluation"]["score"] == "tuned_1"]
    assert len(finals) == 8 and len(of_entry) == 4
    partitions = [run.config["partition"]["seed"] for run in of_entry]
    assert sorted(partitions) == [1, 1, 2, 2]
    assert len({run.config["seed"] for run in of_entry}) == 4
    chosen = sorted(path.name for path in (folder / "chosen").iterdir())
    assert chosen[0] == "fedavg,search=0.toml" and len(chosen) == 4
    found = {line["method"]: line for line in read_csv(folder / "searches.csv")}
    scores = [run.summary.tail["tuned_1"] for run in of_entry]
    assert float(found[METHODS[1]]["mean"]) == pytest.approx(np.mean(scores))
    monkeypatch.chdir(repeated)
    asked = ["table", "runs/t", "--at", "tail", "--format", "csv"]
    asked += ["--rows", "method.name,evaluation.score"]
    assert call(*asked) == 0
    shown = list(csv.DictReader(printed().splitlines()))
    assert [line["runs"] for line in shown] == ["4", "4"]
    assert [line["searches"] for line in shown] == ["2", "2"]
    spent = sum(int(line["spent"]) for line in lines[:2]) / 1500
    assert float(shown[0]["spent/budget"]) == pytest.approx(spent)
    assert call(*asked, "--against", "fedavg score=tuned_1") == 0
    (line,) = csv.DictReader(printed().splitlines())
    assert line["searches"] == "2" and float(line["half"]) > 0


def test_repeated_searches_continue_after_files_were_deleted(
    repeated, tmp_path, monkeypatch
):
    """This also holds if the result of a rung is missing and its part exists. Separate
    jobs give the same result.
    """
    shutil.copytree(repeated, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "t"
    names = ("tuned.csv", "searches.csv")
    before = [(folder / name).read_bytes() for name in names]
    part = sorted((folder / "results").glob("*search=1,*,rung=1.json"))[0]
    part.unlink()
    final = "fedavg,search=1,tuned,seed=1"
    shutil.rmtree(folder / "final" / final)
    cell = part.name.removesuffix(",rung=1.json")
    assert play_repeated("--stage", "1", "--cell", cell) == 0
    assert part.is_file()
    assert play_repeated("--stage", "final", "--cell", final) == 0
    for name in names:
        (folder / name).unlink()
    assert play_repeated() == 0
    assert [(folder / name).read_bytes() for name in names] == before


@pytest.mark.parametrize(
    "costs, rounds",
    [
        ([10] * 40, [5, 10, 20]),  # 50, 100 and 200 gradients
        ([10, 40] * 20, [2, 2, 6]),  # from the second round on 70 are expected
        ([60] * 40, []),  # the first round costs more than a quarter
        ([5] * 8 + [90] * 32, []),  # two rounds that cost more than all earlier ones
    ],
)
def test_a_hard_cap_holds_for_any_cost_of_rounds(
    fedavg_tuned, tmp_path, monkeypatch, costs, rounds
):
    """A run with given costs in three rungs of 50, 100 and 200 gradients."""
    tuned = ["tune.hard_cap=true", "tune.budget=200", "tune.rungs=3", "rounds=40"]
    tuning = plan.read(config.read(fedavg_tuned / "t.toml", tuned), "t.toml")
    player = tune.Player(tuning, tmp_path)
    tune.begin(tuning, tmp_path)

    def play_up_to(self, cell, folder, rounds, before):
        training = costs[:rounds]
        return tune_folder.Result(
            rounds=rounds,
            whole=rounds,
            gradients=sum(training),
            score=0.5,
            rank=0.5,
            failure=None,
            highest_cost=halving.find_highest_cost(training),
        )
        yield  # a generator, although it runs nothing

    monkeypatch.setattr(tune.Player, "play_up_to", play_up_to)
    cell = Cell(tuning.make_untuned("fedavg"), 7)
    for number in range(3):
        tune.play_steps(player.play_rung(cell, number, ""), OneProcess())
        found = tune_folder.read_result(tmp_path, cell.name, f"rung={number}")
        share = 50 * 2**number
        if number < len(rounds):
            assert found["rounds"] == rounds[number] and found["failure"] is None
            assert found["gradients"] <= share
        else:
            assert found["score"] is None and "gradients of tr" in found["failure"]
