"""Run an experiment under mpiexec and write rank 0's peak memory before its report, in
bytes, to the file that MEASURED names.

The imports of the report take more memory than the federation of a small model.
"""

import os
import resource
import sys
from pathlib import Path

from hpcfl.cli import command
from hpcfl.communication.connection import connect
from hpcfl.report import run_end

run_end.show_results = lambda folder, played: None
world = connect()
code = command(sys.argv[1:], world)
if world.is_server:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Path(os.environ["MEASURED"]).write_text(str(1024 * kilobytes))
world.end(code)
