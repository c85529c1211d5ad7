#!/usr/bin/env bash
# Convergence: the tuned configuration of every method with twice the rounds.
#   bash launch/tuned/twice.sh runs/tuned/dirichlet    # for text with launch/tuned on PYTHONPATH
#   hpcfl table runs/tuned/dirichlet-twice --rows method.name --at tail
set -euo pipefail

tuned=$1
for file in "$tuned"/chosen/*.toml; do
    rounds=$(sed -n 's/^rounds = \([0-9]*\).*/\1/p' "$file")
    hpcfl run "$file" --set "rounds=$((2 * rounds))" --out "$tuned-twice/$(basename "$file" .toml)"
done
