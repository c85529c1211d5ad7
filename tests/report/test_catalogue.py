import json

import pytest

from hpcfl.experiment import config, plugins
from hpcfl.report import catalogue


def test_the_stored_catalogue_agrees_with_the_code():
    """After a change of a key or description run ``python -m hpcfl.report.catalogue``."""
    stored = catalogue.STORED.read_text(encoding="utf-8")
    # Versions of pydantic write 1 or 1.0.
    assert json.loads(stored) == json.loads(catalogue.write_catalogue())


def test_methods_have_keys_with_meanings():
    listed = {method["name"]: method for method in catalogue.list_entries("methods")}
    assert tuple(listed) == plugins.list_names("hpcfl.methods")
    assert listed["fedprox"]["keys"]["mu"] == {
        "default": 0.001,
        "minimum": 0,
        "type": "number",
        "description": "strength μ of the proximal term; 0 is FedAvg",
        "search": [0.1, 0.01, 0.001, 0.0001],
        "source": "FedALA",
    }
    assert listed["fedavg"]["reference"] == "McMahan et al., AISTATS 2017"
    assert "mu" not in listed["fedavg"]["keys"]
    assert all(
        schema["description"]
        for method in listed.values()
        for schema in method["keys"].values()
    )


@pytest.mark.slow
def test_search_values_are_allowed_and_have_a_source():
    """The default is one of the values if it is the paper's value."""
    searched = 0
    for method in catalogue.list_entries("methods"):
        for key, schema in method["keys"].items():
            if "search" not in schema:
                continue
            searched += 1
            assert schema["default"] in schema["search"] and schema["source"]
            for value in schema["search"]:
                table = {"name": method["name"], key: value}
                config.parse({"method": table})
    assert searched > 20


def test_a_new_file_is_listed_before_the_catalogue_is_rewritten(tmp_path, monkeypatch):
    stored = json.loads(catalogue.STORED.read_text(encoding="utf-8"))
    stored["scores"].pop()
    monkeypatch.setattr(catalogue, "STORED", tmp_path / "catalogue.json")
    catalogue.STORED.write_text(json.dumps(stored))
    assert tuple(
        score["name"] for score in catalogue.list_entries("scores")
    ) == plugins.list_names("hpcfl.scores")
