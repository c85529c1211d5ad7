#!/usr/bin/env bash
# All tests: installs what is needed into .venv, then runs pytest.
# Usage: bash tests/run.sh [options of pytest]
set -euo pipefail

source "$(dirname -- "${BASH_SOURCE[0]}")/../launch/environment.sh"

cd -- "$project"
echo "Running: python -m pytest $*"
exec python -m pytest "$@"
