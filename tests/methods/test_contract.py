"""The contract of methods: what each of its parts gets and gives, whatever the method."""

import re
import runpy
import textwrap

import pytest

from hpcfl.methods import base


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
