"""The command without the modules that reports need, as on a compute node with only the
modules for training.
"""

import sys

from hpcfl.__main__ import main

sys.modules["hpcfl.report.run_end"] = None  # an import of it fails
main()
