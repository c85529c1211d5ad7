"""The base of methods with a proximal term to an anchor from the server."""

import pytest


@pytest.mark.parametrize("name", ["diversifed", "fedamp"])
def test_without_uploads_there_is_no_anchor(equal_runs, name):
    equal_runs(name, "local", server=(), clients=("model",), rounds=1)
