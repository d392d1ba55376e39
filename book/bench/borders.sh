#!/usr/bin/env bash
# Every training behind xx13-free-borders, from the project's root, the most telling first. On one core `photographs` and `scenes`
# take an hour and a half each, `wide` three hours. What is finished is kept.
set -eu
cd "$(dirname "$0")/../.."

# A middle of the names, the border as `noise 1`, the registers, and what else is changed.
train() {
  "${PYTHON:-.venv/bin/python}" -m training borders --name "$1-$2-$3" --registers "$4" --set "frame=$2" --set "border=$3" "${@:5}"
}

arms() {
  for frame in noise flat; do train "$1" $frame 1 0 "${@:2}"; done
  train "$1" noise 1 4 "${@:2}"
  train "$1" flat 0 0 "${@:2}"
  train "$1" flat 1 4 "${@:2}"
  for frame in noise flat; do train "$1" $frame 2 0,4 "${@:2}"; done
  train "$1" flat 0 4 "${@:2}"
}

photographs() { arms borders "$@"; }

scenes() { arms borders-scenes --set train=scenes --set test=scenes --set n_train=2000 "$@"; }

wide() {
  for registers in 0 4; do
    for frame in noise flat; do
      train borders-wide $frame 1 $registers --set width=192 --set depth=12 --set heads=3 --set lr=1e-3 "$@"
    done
  done
}

"$@"
