"""Number of examples: the same few every time, or many new ones with HPCFL_FUZZ=long."""

import os
from pathlib import Path

import checked_calls
import pytest
from hypothesis import HealthCheck, Phase, settings

COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
settings.register_profile(
    "short", max_examples=10, derandomize=True, phases=[Phase.generate], **COMMON
)
settings.register_profile("long", max_examples=5000, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HPCFL_FUZZ", "short"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Return a place with an experiment file and the folder of its finished run."""
    place = tmp_path_factory.mktemp("finished")
    (place / "file.toml").write_text(checked_calls.EXPERIMENT)
    assert checked_calls.answer("run", place / "file.toml", "--out", place / "run") == 0
    return place
