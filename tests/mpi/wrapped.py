"""The command inside another process that ends a little later, as scripts start it that
bind ranks to cores.
"""

import subprocess
import sys
import time

# one path leads to mpiexec
code = subprocess.run(
    [sys.executable, "-m", "hpcfl", *sys.argv[1:]], close_fds=False
).returncode
time.sleep(0.5)
sys.exit(code)
