import pytest

from hpcfl.experiment import plugins
from hpcfl.report import catalogue, traffic


def test_every_method_is_listed_with_its_own_keys(monkeypatch):
    monkeypatch.setattr(traffic, "of", lambda name: traffic.Traffic(1.0, len(name), None))
    listed = {method["name"]: method for method in catalogue.methods()}
    assert list(listed) == plugins.names("hpcfl.methods")
    assert listed["fedprox"]["keys"]["mu"] == {"default": 0.001, "minimum": 0, "type": "number",
                                               "description": "strength μ of the proximal term; 0 is FedAvg"}
    assert listed["fedavg"]["reference"] == "McMahan et al., AISTATS 2017"
    assert listed["fedprox"]["traffic"] == {"down": 1.0, "up": 7, "paper": None}
    assert "mu" not in listed["fedavg"]["keys"]
    assert all(schema["description"] for method in listed.values() for schema in method["keys"].values())


def test_every_data_set_is_listed():
    listed = {dataset["name"]: dataset for dataset in catalogue.datasets()}
    assert list(listed) == plugins.names("hpcfl.data.sources")
    assert listed["digits"]["built_in"] and not listed["mnist"]["built_in"]
    assert "60,000" in listed["mnist"]["description"]


@pytest.mark.parametrize("schema, words", [
    ({"type": "number", "minimum": 0}, "number ≥ 0"),
    ({"enum": ["a", "b"], "type": "string"}, "a | b"),
    ({"const": "a", "type": "string"}, "a"),
    ({"anyOf": [{"enum": ["all"]}, {"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]},
     "all | integer > 0 | null"),
])
def test_a_type_in_words(schema, words):
    assert catalogue.type_name(schema) == words
