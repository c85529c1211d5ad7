#!/usr/bin/env bash
# The papers' figures. `bash launch/figures/make.sh NAME…` runs what a figure needs, launch/figures/PAPER-NUMBER.toml,
# unless that is done already, and draws results/figures/NAME.png; without names all of them.
# Data sets are read from $HPCFL_DATA, results lie in $RUNS (default runs/figures).
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/launch/figures${PYTHONPATH:+:$PYTHONPATH}" # the figures' own kinds and methods
declare -A plots=(
    [cwfedavg-2]="--kind class_distribution:draw --client 18"
    [cwfedavg-3-accuracy]="--x method.wdr --at last --width 3.3"
    [cwfedavg-3-distance]="--x method.wdr --at last --metric recorded/distribution_distance --width 3.3"
    [cwfedavg-4]="--kind output_norms:draw"
    [cwfedavg-5]="--kind class_distribution:draw --client 11"
    [cwfedavg-6]="--kind output_norms:draw"
    [cwfedavg-7]="--kind output_norms:draw"
    [fedala-3]="--kind weight_learning:draw --client 8"
    [fedala-4]="--kind trajectory:draw --client 4 --own late_ala:Late --width 5"
    [fedala-5]="--kind training_loss:draw --width 5"
    [fednh-1]="--kind representations:draw"
    [fednh-2]="--kind representations:draw --client 1"
    [fednh-3]="--kind prototype_similarity:draw"
    [fednh-4]="--kind key_gains:draw --x method.rho --against 0.1 --width 3.3"
    [diversifed-1]="--x method.pull --at last --width 3.3"
    [diversifed-5]="--kind partition --width 6"
    [diversifed-6]="--kind curves --width 5"
    [diversifed-7]="--kind model_distances:draw"
    [diversifed-8]="--x partition.clients --at last --width 3.3"
    [diversifed-9]="--x training.epochs --at last --width 3.3"
)
(($#)) || set -- "${!plots[@]}"
for name in "$@"; do
    experiment=$(cut -d - -f 1,2 <<<"$name")
    hpcfl run "launch/figures/$experiment.toml" --out "${RUNS:-runs/figures}/$experiment"
    # shellcheck disable=SC2086  # several words
    hpcfl plot "${RUNS:-runs/figures}/$experiment" ${plots[$name]} --out "results/figures/$name.png"
done
