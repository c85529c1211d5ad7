"""Slightly wrong experiment files: checked, or refused in one line."""

import json

import checked_calls
import pytest
import strange
from hypothesis import given
from hypothesis import strategies as st
from playing import stamp

from hpcfl.experiment import config

pytestmark = pytest.mark.slow

RESOLVED = config.parse(
    {
        "rounds": 2,
        "partition": {"clients": 3},
        "model": {"hidden": [4]},
        "method": {"name": "ditto"},
    }
).resolved()


@given(st.data())
def test_changed_values_of_a_configuration_give_no_traceback(tmp_path, data):
    table = RESOLVED
    for _ in range(data.draw(st.integers(1, 2))):
        table = strange.changed(data.draw, table)
    _check(tmp_path, "file.json", json.dumps(table).encode())


@given(st.data())
def test_text_that_is_not_quite_an_experiment(tmp_path, data):
    _check(
        tmp_path,
        "file.toml",
        strange.damaged(data.draw, checked_calls.EXPERIMENT.encode()),
    )


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_override_gives_a_valid_reply_and_changes_nothing(tmp_path, key, value):
    (tmp_path / "file.toml").write_text(checked_calls.EXPERIMENT)
    before = stamp(tmp_path)
    checked_calls.answer("check", tmp_path / "file.toml", "--set", f"{key}={value}")
    assert stamp(tmp_path) == before


def _check(folder, name, content):
    (folder / name).write_bytes(content)
    before = stamp(folder)
    checked_calls.answer("check", folder / name)
    assert stamp(folder) == before
