"""Put the folders of the papers' figures and counts on Python's path."""

import sys
from pathlib import Path

LAUNCH = Path(__file__).parents[2] / "launch"
sys.path[:0] = [str(LAUNCH / "figures"), str(LAUNCH / "papers")]
