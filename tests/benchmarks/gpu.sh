#!/usr/bin/env bash
# Everything there is to see on one GPU, meant for ten minutes: the tests that need one, the rows of one GPU of
# results/benchmarks/gpu.json and of the READMEs' tables, and a profile of training.
# CIFAR-10 is looked for in $HPCFL_DATA. Ends with 2 where there is no GPU, with 1 where a test or a row failed.
# Usage: HPCFL_DATA=… bash tests/benchmarks/gpu.sh [--pfl PYTHON]
#   --pfl: an interpreter with the package pfl, for the row against pfl-research.
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../../launch/environment.sh"

cd -- "$project"
python - <<'CHECK'
import sys
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Runtime
from hpcfl.simulation.device import choose_device
try:
    choose_device(Runtime(device="cuda"), 0)
except UserError as error:
    print(f"gpu.sh: {error}", file=sys.stderr)
    sys.exit(2)
CHECK
failed=0
echo "Running: python -m pytest -m gpu tests"
python -m pytest -q -m gpu tests || failed=1
echo "Running: python tests/benchmarks/rounds.py --device cuda $*"
python tests/benchmarks/rounds.py --device cuda "$@" || failed=1
echo "Running: python tests/benchmarks/profile_round.py --device cuda"
python tests/benchmarks/profile_round.py --device cuda || failed=1
exit "$failed"
