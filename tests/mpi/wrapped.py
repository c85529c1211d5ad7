"""The command inside another process, as scripts that bind ranks to cores start it;
that one stays a little longer.
"""

import subprocess
import sys
import time

# one leads to mpiexec
code = subprocess.run(
    [sys.executable, "-m", "hpcfl", *sys.argv[1:]], close_fds=False
).returncode
time.sleep(0.5)
sys.exit(code)
