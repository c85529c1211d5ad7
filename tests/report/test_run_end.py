"""Results and figures at the end of a run."""

import pytest

from hpcfl.report import run_end


def test_a_run_ends_with_its_table_and_draws_nothing(make_run, printed):
    folder = make_run()
    run_end.show_results(folder, has_played=True)
    output = printed()
    assert "▸before" in output and f"hpcfl plot {folder}" in output
    assert not list(folder.glob("*.png"))


@pytest.mark.slow
def test_a_sweep_ends_with_its_table_and_figures(make_run, printed):
    make_run("sweep/fedavg")
    folder = make_run("sweep/local", method="local", primary="post").parent
    run_end.show_results(folder, has_played=True)
    output = printed()
    assert "▸before" in output and f"figure: {folder / 'accuracy.png'}" in output
    assert (folder / "clients.png").exists()


def test_runs_that_differ_in_more_than_their_method_end_with_their_means(
    make_run, printed
):
    make_run("sweep/a")
    folder = make_run("sweep/b").parent
    (folder / "old.png").touch()
    run_end.show_results(folder, has_played=False)
    assert "same run" in " ".join(printed().split())
