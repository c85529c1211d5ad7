"""The notebooks of ``launch/notebooks`` run from the first cell to the last, in one
kernel that is cleared between them, and ``hpcfl.run`` works in it.
"""

import os
import re

import nbformat
import pytest
from nbclient import NotebookClient
from places import ROOT

FOLDER = ROOT / "launch" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))

pytestmark = pytest.mark.slow

TABLE = """
import os, signal
import hpcfl

table = {
    "name": "small",
    "rounds": 2,
    "partition": {"scheme": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedavg"},
    "training": {"batch_size": 200},
}
"""
QUIET = 'run = hpcfl.run(table, out="quiet", progress=False)'
MISTAKE = 'hpcfl.run({**table, "rounds": -1})'
STOPPED = """
def stop(name, round, values):
    if round == 1:
        os.kill(os.getpid(), signal.SIGINT)

hpcfl.run(table, out="stopped", on_round=stop)
"""
CONTINUED = """
after = hpcfl.run(table, out="stopped", progress=False)
assert after.summary.digest == run.summary.digest
"""


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def in_less_time(source):
    """Return a cell with few clients that train for one epoch in large batches."""
    source = source.replace('"clients": 20, "beta": 0.1', '"clients": 8, "beta": 1.0')
    return re.sub(r'"epochs": \d', '"epochs": 1, "batch_size": 100', source)


@pytest.fixture(scope="module")
def played(tmp_path_factory, zygote):
    """Return the folder, and each cell's source with its output."""
    folder = tmp_path_factory.mktemp("notebooks")
    cells = []
    for name in NAMES:
        for cell in read(name).cells:
            cell.source = in_less_time(cell.source)
            cells.append(cell)
        cells.append(nbformat.v4.new_code_cell("%reset -f"))
    for source in (TABLE, QUIET, MISTAKE, STOPPED, CONTINUED):
        cell = nbformat.v4.new_code_cell(source)
        if source in (MISTAKE, STOPPED):
            cell.metadata["tags"] = ["raises-exception"]
        cells.append(cell)
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    kernel = client.create_kernel_manager().kernel_spec
    kernel.argv = [str(zygote.python), *kernel.argv[kernel.argv.index("-m") :]]
    client.execute(env={**os.environ, "PATH": zygote.path})
    below = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            below[cell.source] = cell.outputs
    return folder, below


def test_notebooks_run_and_write_their_files(played):
    folder, _ = played
    for name in (
        "curves.pdf",
        "grid.tar.xz",
        "my_mix.py",
        "runs/three-methods/clients.png",
    ):
        assert (folder / name).stat().st_size > 100


def test_each_run_has_one_line_that_changes_and_nothing_else_is_displayed(played):
    _, below = played
    (first,) = (
        outputs
        for source, outputs in below.items()
        if "runs = hpcfl.run" in source and '"name": "three-methods"' in source
    )
    lines = [one.data for one in first if one.output_type == "display_data"]
    assert [list(line) for line in lines] == [["text/plain"]] * 3
    for method, line in zip(("local", "fedavg", "ditto"), lines, strict=True):
        assert line["text/plain"].startswith(
            f"three-methods-{method}: after 10 rounds  accuracy "
        )
    printed = "".join(one.text for one in first if one.output_type == "stream")
    assert "\x1b" not in printed and "\r" not in printed
    assert "more: hpcfl show runs/three-methods --explain" in printed


def test_without_progress_nothing_appears(played):
    assert played[1][QUIET] == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (MISTAKE, "UserError: configuration: rounds = -1: "),
        (STOPPED, "Interrupted: stopped after round "),
    ],
)
def test_an_expected_error_is_shown_in_one_line(played, source, line):
    (shown,) = (one for one in played[1][source] if one.output_type == "error")
    (message,) = shown.traceback
    assert message.startswith(line)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_stored_without_outputs(name):
    """Without outputs, which would be another processor's numbers, and pictures in
    every change.
    """
    for cell in read(name).cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
