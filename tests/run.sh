#!/usr/bin/env bash
# All tests: installs what is needed into .venv, looks at the code with ruff and mypy, then runs pytest.
# Usage: bash tests/run.sh [options of pytest]
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../launch/environment.sh"

cd -- "$project"
# Two files at a time, in their order: those of tests/cluster mostly wait for Slurm, so they may not come last and alone.
parallel=(-n 2 --dist loadfile --no-loadscope-reorder)
echo "Running: python -m ruff check hpcfl tests launch slurm"
python -m ruff check hpcfl tests launch slurm
echo "Running: python -m mypy"
python -m mypy
echo "Running: python -m pytest ${parallel[*]} $*"
exec python -m pytest "${parallel[@]}" "$@"
