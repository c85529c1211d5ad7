"""A user's script, in a process that is ready to be struck: ``script.py FILE FOLDER``."""

import sys

import inside

import hpcfl

inside.prepare()
hpcfl.run(sys.argv[1], out=sys.argv[2], progress=False)
