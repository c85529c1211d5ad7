"""BibTeX entries of methods, of runs, and of hpcfl itself."""

import re
from collections.abc import Iterable
from pathlib import Path

import hpcfl
from hpcfl.errors import UserError
from hpcfl.trained.run import Run

REFERENCES = Path(hpcfl.__file__).parent / "methods" / "references.bib"
OWN = f"""@misc{{hpcfl,
  author = {{{{The hpcfl developers}}}},
  title = {{hpcfl: Personalised Federated Learning Simulated on {{HPC}} Clusters}},
  note = {{Version {hpcfl.__version__}}},
}}"""


def read_entries() -> dict[str, list[str]]:
    """Return BibTeX entries from ``references.bib``, each with the methods that cite it."""
    text = REFERENCES.read_text(encoding="utf-8")
    found = {}
    for block in text.split("\n\n"):
        if not block.startswith("@"):
            continue
        keywords = re.search(r"^  keywords = \{(.*)\},$", block, re.MULTILINE)
        found[block.strip()] = keywords[1].split(", ") if keywords else []
    return found


def cite_methods() -> str:
    """Return the BibTeX entries of all built-in methods."""
    return "\n\n".join(read_entries())


def cite_method(name: str) -> str:
    """Return the BibTeX entry of a built-in method. Raises UserError if it has none."""
    found = _find_cited({name.replace("_", "-")})
    if not found:
        raise UserError(
            f"'{name}': hpcfl has no BibTeX entry for it; hpcfl methods lists the "
            "references of the built-in methods"
        )
    return found[0]


def cite_runs(runs: Iterable[Run]) -> str:
    """Return the BibTeX entries of hpcfl and of all methods and options of the runs."""
    used: set[str] = set()
    for run in runs:
        method = run.config["method"]
        used.add(str(method["name"]))
        if method.get("ala"):
            used.add("fedala")
        if method.get("aggregation") == "class-wise":
            used.add("cwfedavg")
    return "\n\n".join([OWN, *_find_cited(used)])


def _find_cited(methods: set[str]) -> list[str]:
    """Return the BibTeX entries whose keywords include one of the methods."""
    return [entry for entry, named in read_entries().items() if methods & set(named)]
