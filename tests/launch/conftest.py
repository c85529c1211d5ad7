"""The papers' figures are modules of a folder that ``make.sh`` lets Python look into."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "launch" / "figures"))
