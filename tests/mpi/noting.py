"""The command, with a record of each rank's exit code, because mpiexec reports only one
for all.
"""

import os
from pathlib import Path

from hpcfl.__main__ import main

try:
    main()
except SystemExit as leaving:
    Path(os.environ["CODES"], os.environ["PMI_RANK"]).write_text(str(leaving.code))
    raise
