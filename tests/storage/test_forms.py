"""Types in the JSON of a run's folder, checked by type checkers."""

import pytest
from pydantic import TypeAdapter, ValidationError

from hpcfl.experiment import config
from hpcfl.storage.forms import AnotherRun, FileName, RunFile, Start, check_run

CONFIG = config.parse({"method": {"name": "fedavg"}}).resolved()
NEEDED = [
    "name",
    "seed",
    "rounds",
    "data",
    "partition",
    "runtime",
    "model",
    "method",
    "evaluation",
]


def test_further_keys_are_allowed():
    content = {"format": 1, "config": CONFIG | {"later": 1}}
    assert TypeAdapter(RunFile).validate_python(content) == content


@pytest.mark.parametrize("key", NEEDED)
def test_a_configuration_has_every_key_that_readers_need(key):
    lacking = {name: value for name, value in CONFIG.items() if name != key}
    with pytest.raises(ValidationError, match=key):
        TypeAdapter(RunFile).validate_python({"format": 1, "config": lacking})


@pytest.mark.parametrize(
    "changed",
    [
        {"adapter": None},
        {"runtime": None},
        {"runtime": {"device": 0}},
        {"partition": {"clients": "x", "seed": 1}},
        {"partition": {"clients": 5}},
    ],
)
def test_a_section_that_readers_need_has_its_keys(changed):
    [section] = changed
    with pytest.raises(ValidationError, match=section):
        TypeAdapter(RunFile).validate_python({"format": 1, "config": CONFIG | changed})


def test_a_start_has_a_positive_number_of_ranks():
    start = {"after": 0, "time": "now", "ranks": 0, "commit": None, "failure": None}
    with pytest.raises(ValidationError, match="ranks"):
        TypeAdapter(Start).validate_python(start)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\0", "x" * 256])
def test_file_names_outside_the_folder_are_refused(name):
    with pytest.raises(ValidationError):
        TypeAdapter(FileName).validate_python(name)


def test_a_file_of_another_run_is_refused():
    check_run("abc", "abc")
    check_run("abc", None)
    with pytest.raises(AnotherRun):
        check_run("abc", "def")
