#!/usr/bin/env bash
# The first hour on a GPU: numbers first, then the tests that need one. Nothing is installed, downloaded or written
# into the checkout. Ends with 2 where PYTHON lacks packages or a GPU, with 1 where a row failed.
# Usage: bash tests/benchmarks/gpu.sh --python PYTHON --out DIR [--hours HOURS]
#   --python: an interpreter that has torch with CUDA and hpcfl's dependencies; hpcfl itself is this checkout
#   --out: the folder of gpu.json, gpu.md, log.txt and all other output
set -euo pipefail

project="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
if [[ "${1:-}" != --python || -z "${2:-}" ]]; then
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
python="$2"
shift 2
export PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1
exec "$python" "$project/tests/benchmarks/first_hour.py" "$@"
