"""Runs in a real Slurm: submitted, in sweeps, and by the commands of its README."""

import re
import shutil

import pytest
from places import ROOT

pytestmark = pytest.mark.slurm

SLURM = ROOT / "slurm"


def test_job_on_two_nodes_gives_the_digest_of_one_process(cluster, undisturbed):
    cluster.experiment()
    dry = cluster.hpcfl(
        "submit", "e.toml", "--profile", "bed", "--out", "out", "--dry-run"
    )
    assert (
        "#SBATCH --nodes=2" in dry
        and "#SBATCH --ntasks-per-node=2" in dry
        and not (cluster.folder / "out").exists()
    )
    (job,) = cluster.submit()
    cluster.wait(job)
    assert cluster.digest() == undisturbed
    log = cluster.log()
    assert "the server" in log
    assert all(
        re.search(rf"rank {rank} on .*cores .*clients ", log) for rank in (1, 2, 3)
    )
    assert "finished" in cluster.hpcfl("status", "out")
    assert "1 of 1 complete" in cluster.hpcfl(
        "submit", "e.toml", "--profile", "bed", "--out", "out"
    )


def test_all_commands_of_the_readme_run(cluster):
    """All commands of the README with a running test cluster, in a folder with only
    ``slurm/``.
    """
    shutil.copytree(SLURM, cluster.folder / "slurm", dirs_exist_ok=True)
    text = (SLURM / "README.md").read_text()
    chapter = text.partition("## Submit")[2].partition("## The site's MPI")[0]
    dry, sent, watched, table, by_hand = (
        cluster.run("bash", "-ec", line.strip())
        for line in chapter.splitlines()
        if line.startswith("    ")
    )
    assert "#SBATCH --array=0-5%6" in dry and "memory" in dry
    assert sent.count(": job ") == 6 and watched.strip().endswith("6 finished")
    assert all(
        re.search(rf"{method} +\d\d\.\d\d ± ", table) for method in ("fedavg", "local")
    )
    cluster.wait(by_hand.split()[-1])
    assert "6 finished" in cluster.hpcfl("status", "runs/by-hand")


def test_a_folder_name_with_spaces_and_quotes_is_used(cluster):
    cluster.experiment()
    cluster.profile(ranks_per_node=1)
    out = "two words; 'quoted' $HOME"
    (job,) = cluster.submit(out)
    cluster.wait(job)
    assert cluster.rounds(out) == 20
    assert {path.name for path in cluster.folder.iterdir() if path.is_dir()} - {
        "__pycache__"
    } == {"slurm", out}


def test_sweep_with_a_failing_cell(cluster):
    cluster.experiment(
        sweep='[sweep]\nmethod.name = ["fedavg", "methods_for_jobs:Slow"]\nseed = [0, 1]\n'
    )
    cluster.profile(ranks_per_node=1, at_once=3)
    (cluster.folder / "broken-1").touch()
    jobs = cluster.submit()
    assert (
        len(jobs) == 4 and len({job.partition("_")[0] for job in jobs}) == 1
    )  # one array
    for job in jobs:
        cluster.until(lambda job=job: cluster.ended(job), f"the end of {job}")
    status = cluster.hpcfl("status", "out")
    assert "3 finished, 1 failed" in status
    assert re.search(
        r"methods_for_jobs_Slow,seed=1 +failed .*broken\s+on purpose",
        status,
    )
    (cluster.folder / "broken-1").unlink()
    (job,) = cluster.submit()
    cluster.wait(job)
    table = cluster.hpcfl("table", "out", "--format", "csv")
    rows = [line.split(",") for line in table.splitlines()]
    assert [(row[0], row[1], row[-3]) for row in rows[1:]] == [  # number of seeds
        ("fedavg", "digits dirichlet", "2"),
        ("methods_for_jobs:Slow", "digits dirichlet", "2"),
    ]
    assert rows[1][3:5] == rows[2][3:5]  # without a pause the two are the same method
