"""Put the folders of the papers' figures and counts on Python's path."""

import sys

from places import ROOT

LAUNCH = ROOT / "launch"
sys.path[:0] = [str(LAUNCH / "figures"), str(LAUNCH / "papers")]
