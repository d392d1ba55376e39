#!/usr/bin/env bash
# Every training behind xx13-free-borders, from the project's root, the most telling first. On one core `photographs` and `scenes`
# take an hour and a half each, `wide` three hours, the further designs an hour. What is finished is kept.
set -eu
cd "$(dirname "$0")/../.."

# A middle of the names, the border as `noise 1`, the registers, and what else is changed.
train() {
  "${PYTHON:-.venv/bin/python}" -m training "${PRESET:-borders}" --name "$1-$2-$3" --registers "$4" --set "frame=$2" --set "border=$3" "${@:5}"
}

judged() {
  for frame in noise flat; do train "$1" $frame 1 0 "${@:2}"; done
  train "$1" noise 1 4 "${@:2}"
}

arms() {
  judged "$@"
  train "$1" flat 0 0 "${@:2}"
  train "$1" flat 1 4 "${@:2}"
  for frame in noise flat; do train "$1" $frame 2 0,4 "${@:2}"; done
  train "$1" flat 0 4 "${@:2}"
}

photographs() { arms borders "$@"; }

SCENES="--set train=scenes --set test=scenes --set n_train=2000"

scenes() { arms borders-scenes $SCENES "$@"; }

wide() {
  for registers in 0 4; do
    for frame in noise flat; do
      train borders-wide $frame 1 $registers --set width=192 --set depth=12 --set heads=3 --set lr=1e-3 "$@"
    done
  done
}

no_cls() { judged borders-no-cls $SCENES --set pool=avg "$@"; }

quiet() { PRESET=quiet judged quiet-borders "$@"; }

shallow() { PRESET=quiet judged quiet-borders-shallow --set depth=2 --set layer_scale=.1 --set weight_decay=.5 "$@"; }

"$@"
