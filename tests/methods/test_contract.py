"""The contract of methods: what each of its parts gets and gives, whatever the method."""

import re
import runpy
import textwrap

import pytest
from tiny import table

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.methods import base
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import preflight
from hpcfl.simulation.prepare import prepare


class Weighs(FedAvg):
    """FedAvg that would scale what it sends by the weights of those who get it."""

    def send(self, server, audience):
        return {"model": server["model"] * audience.weights.sum()}


def test_an_audience_has_no_weights():
    """In scored rounds it is everybody: a message made with weights would depend on how
    often a run is scored.
    """
    prepared = prepare(config.parse(table("test_contract:Weighs")), OneProcess())
    with pytest.raises(UserError, match="'Audience' object has no attribute 'weights'"):
        preflight.run(prepared, OneProcess())


@pytest.mark.slow
def test_the_example_of_the_contract_prints_what_it_says(tmp_path, monkeypatch, capsys):
    example = base.__doc__.partition("half::\n")[2].partition("\nThe last number")[0]
    source = textwrap.dedent(example)
    (tmp_path / "halfway.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("halfway.py", run_name="__main__")
    output = capsys.readouterr().out
    expected = re.findall(r"# (\d\.\d\d)$", source, re.MULTILINE)
    assert len(expected) == 4 and output.split()[-4:] == expected
