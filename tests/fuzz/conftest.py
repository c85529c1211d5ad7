"""Number of examples: the same few every time, or many new ones with HPCFL_FUZZ=long."""

import os

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
