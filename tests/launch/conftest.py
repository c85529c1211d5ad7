"""The papers' figures and counts are modules of folders that Python looks into."""

import sys
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"
sys.path[:0] = [str(LAUNCH / "figures"), str(LAUNCH / "papers")]
