#!/usr/bin/env bash
# The first hour on a GPU: numbers first, then the tests that need one. Nothing is installed, downloaded or written
# into the checkout. Ends with 2 where PYTHON lacks packages or a GPU, with 1 where a row failed.
# Usage: bash tests/benchmarks/gpu.sh --python PYTHON --out DIR [--hours HOURS] [--device cpu]
#   --python: an interpreter that has torch with CUDA and hpcfl's dependencies; hpcfl itself is this checkout
#   --out: the folder of gpu.md (the page), gpu.json, lanes.json and log.txt, outside of the checkout
#   --hours: time for all rows, 1 by default; with less the least important rows are left out
#   --device cpu: the same rows at a hundredth of their size, to try this script without a GPU
set -euo pipefail

project="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
if [[ "${1:-}" != --python || -z "${2:-}" ]]; then
    sed -n '2,8s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
python="$2"
shift 2
export PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
exec "$python" "$project/tests/benchmarks/gpu_hour.py" "$@"
