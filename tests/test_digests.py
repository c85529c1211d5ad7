"""No method ends otherwise than when ``digests.json`` was written. One case of each
method, with some clients away where the method allows it; ``python tests/digests.py``
compares them all.
"""

import json

import digests
import pytest

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import plugins

KEPT = json.loads(digests.KEPT.read_text(encoding="utf-8"))


def test_every_case_has_a_digest():
    """A new method's are written by ``python tests/digests.py --add``."""
    assert set(KEPT["digests"]) == set(map(digests.name_of, digests.cases()))


@pytest.mark.slow
@pytest.mark.skipif(
    KEPT["platform"] != digests.platform_of_digests(),
    reason="the last bits are those of another processor or torch",
)
@pytest.mark.parametrize("method", plugins.names("hpcfl.methods"))
def test_a_method_ends_as_it_always_did(method, tmp_path):
    case = (method, "uneven", 1.0 if method == "apple" else 0.5)
    digest = digests.digest_of(case, tmp_path / "run", OneProcess())
    assert digest == KEPT["digests"][digests.name_of(case)]
