#!/usr/bin/env bash
# The papers' figures. `bash launch/figures/make.sh NAME…` runs the experiment of a figure, launch/figures/PAPER-NUMBER.toml,
# unless it is complete, and draws results/figures/NAME.png; without names it draws all figures.
# Data sets are read from $HPCFL_DATA; results are in $RUNS (default runs/figures).
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
    [fedala-7]="--kind partition --width 7.5"
    [fedala-8]="--kind partition --width 7.5"
    [fedala-9]="--kind partition --width 7.5"
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
# Caption of each figure: differences from the paper's figure.
declare -A settings=(
    [cwfedavg-2]="As in the paper: CIFAR-10, CNN, round 1. Dirichlet 0.1, one draw of the partition."
    [cwfedavg-3-accuracy]="Not the paper's setting: digits for CIFAR-10 and CIFAR-100, one hidden layer for its CNN, 30 rounds for 1,000."
    [cwfedavg-3-distance]="Not the paper's setting: digits for CIFAR-10 and CIFAR-100, one hidden layer for its CNN, 30 rounds for 1,000."
    [cwfedavg-4]="Not the paper's setting: digits for CIFAR-10, one hidden layer for its CNN, 100 rounds for 1,000."
    [cwfedavg-5]="As in the paper: CIFAR-100, CNN, round 1. Dirichlet 0.1, one draw of the partition."
    [cwfedavg-6]="Not the paper's setting: 3 rounds of 1,000. CIFAR-100 and CNN are the paper's."
    [cwfedavg-7]="Not the paper's setting: digits for CIFAR-10, one hidden layer for its CNN, 40 rounds for 1,000."
    [fedala-3]="Not the paper's setting: digits for MNIST and CIFAR-10, one hidden layer for its CNN."
    [fedala-4]="Not the paper's setting: digits for MNIST, one hidden layer for its CNN, rounds 22 to 40 for its 140 to 200."
    [fedala-5]="Not the paper's setting: digits for MNIST, one hidden layer for its CNN, 60 rounds for more than 1,000."
    [fedala-7]="As in the paper: MNIST and CIFAR-10 with two classes a client, CIFAR-100 with ten. One draw."
    [fedala-8]="As in the paper: MNIST, CIFAR-10 and CIFAR-100, Dirichlet 0.1. One draw."
    [fedala-9]="As in the paper: CIFAR-100, 50 and 100 clients, Dirichlet 0.1. One draw."
    [fednh-1]="As in the paper: spirals of six classes, five layers. Both heads look at angles alone with balanced classes, too."
    [fednh-2]="The paper's rounds and epochs are not known. Here: 100 clients, 10 rounds, 20 epochs."
    [fednh-3]="Not the paper's setting: 10 clients for 100, 6 rounds of 200, 1 epoch for 5. CIFAR-100 is the paper's."
    [fednh-4]="Not the paper's setting: digits, one hidden layer, 20 rounds, 3 seeds."
    [diversifed-1]="Not the paper's setting: digits for CIFAR-10, one hidden layer, 20 rounds."
    [diversifed-5]="As in the paper: 20 clients, 10 classes, Dirichlet shares. One draw, of Fashion-MNIST."
    [diversifed-6]="Not the paper's setting: Fashion-MNIST for CIFAR-10, MLP for its CNN, 20 clients for 40, 30 rounds of 500."
    [diversifed-7]="Not the paper's setting: Fashion-MNIST for CIFAR-10, MLP for its CNN, 20 clients for 40, 60 rounds of 500."
    [diversifed-8]="Not the paper's setting: 10 rounds of 500, 5 epochs for 10, one data set of three."
    [diversifed-9]="Not the paper's setting: 10 rounds of 500, 20 clients for 40, one data set of three."
)
(($#)) || set -- "${!plots[@]}"
for name in "$@"; do
    experiment=$(cut -d - -f 1,2 <<<"$name")
    hpcfl run "launch/figures/$experiment.toml" --out "${RUNS:-runs/figures}/$experiment"
    # shellcheck disable=SC2086  # several words
    hpcfl plot "${RUNS:-runs/figures}/$experiment" ${plots[$name]} --out "results/figures/$name.png"
    python launch/figures/caption.py "results/figures/$name.png" "${settings[$name]}"
done
