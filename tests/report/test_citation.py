"""Citations: one entry for each built-in method, and one for hpcfl."""

import re
import tomllib

import yaml
from places import ROOT
from refusals import expect_refusal

import hpcfl
from hpcfl.experiment import plugins
from hpcfl.report import catalogue, citation, tables

NO_PAPER = {"local"}


def field(entry: str, name: str) -> str:
    found = re.search(rf"^  {name} = \{{(.*)\}},$", entry, re.MULTILINE)
    return found[1] if found else ""


def test_each_method_with_a_paper_is_in_one_entry():
    named = [
        method for methods in citation.read_entries().values() for method in methods
    ]
    assert sorted(named) == sorted(set(plugins.list_names("hpcfl.methods")) - NO_PAPER)


def test_entries_agree_with_the_references_of_the_methods():
    """These are the first author, the venue or the number, and the year."""
    references = {
        entry["name"]: entry["reference"] for entry in catalogue.list_entries("methods")
    }
    for entry, methods in citation.read_entries().items():
        for method in methods:
            reference = references[method].removeprefix("baseline of ")
            author = re.split(r" et al\.| & |, ", reference)[0]
            assert field(entry, "author").startswith(author) or author == "Dinh"
            if "arXiv" in reference:
                assert field(entry, "eprint") == reference.split()[-1]
            elif re.search(r"\d{4}$", reference):
                assert field(entry, "year") == reference[-4:]
            else:
                title = reference.partition(", ")[2]
                assert title and field(entry, "title").startswith(title)


def test_entries_are_whole_and_their_keys_differ():
    keys = set()
    for entry in [*citation.read_entries(), citation.OWN]:
        assert entry.count("{") == entry.count("}")
        assert field(entry, "author") and field(entry, "title")
        assert " others" not in field(entry, "author")
        keys.add(re.match(r"@(?:misc|article|inproceedings)\{(\w+),\n", entry)[1])
    assert len(keys) == len(citation.read_entries()) + 1


def test_entries_have_a_year_and_a_venue():
    for entry in citation.read_entries():
        assert re.fullmatch(r"(?:19|20)\d\d", field(entry, "year")), entry
        places = [field(entry, name) for name in ("booktitle", "journal", "eprint")]
        assert any(places), entry


def test_text_before_the_first_entry_is_a_comment():
    heading = citation.REFERENCES.read_text(encoding="utf-8").partition("@")[0]
    assert all(line.startswith("%") for line in heading.splitlines() if line)


def test_methods_of_one_paper_are_cited_alike():
    assert citation.cite_method("fedavg_c") == citation.cite_method("fedala")
    assert "@inproceedings{li2021ditto," in citation.cite_method("ditto")
    with expect_refusal("my_own:Method"):
        citation.cite_method("my_own:Method")


def test_runs_are_cited_by_their_methods(make_run, printed):
    folder = make_run("fedavg")
    runs = tables.list_runs(folder)
    method = citation.cite_method("fedavg")
    assert citation.cite_runs(runs) == f"{citation.OWN}\n\n{method}"
    runs[0].config["method"]["ala"] = True
    assert citation.cite_method("fedala") in citation.cite_runs(runs)
    tables.show(folder, explain=True)
    assert f"cite: hpcfl show {folder} --bibtex" in printed()


def test_the_citation_file_is_that_of_this_version():
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {"cff-version", "message", "title", "authors"}
    assert required <= set(stated)
    assert stated["cff-version"] == "1.2.0"
    assert str(stated["version"]) == project["version"] == hpcfl.__version__
    assert stated["license"] == project["license"]
