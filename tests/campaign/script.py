"""A user's script, in a process that is prepared for a fault: ``script.py FILE
FOLDER``.
"""

import sys

import inside

import hpcfl

inside.prepare()
hpcfl.run(sys.argv[1], out=sys.argv[2], progress=False)
