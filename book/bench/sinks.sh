#!/usr/bin/env bash
# Every training behind xx7-sink-tasks, from the project's root: `small` on one core, some half an hour, or `full` on one GPU.
set -eu
cd "$(dirname "$0")/../.."

train() { "${PYTHON:-.venv/bin/python}" -m training "$@"; }

small() {
  for task in quiet broadcast; do train $task --registers 0,4 --seeds 0 "$@"; done
  train quiet --registers 0,4 --seeds 1,2,3,4 "$@"
  variation() { train quiet --name "quiet-$1" --registers 0 --seeds 0 --set "$2" "${@:3}"; }
  variation sigmoid attention=sigmoid "$@"
  variation layerscale layer_scale=1e-4 "$@"
  variation cls cls=1 "$@"
  variation sgd optimizer=sgd --set lr=0.1 "$@"
  for task in quiet broadcast; do train $task --name $task-decay0 --registers 0,4 --seeds 0 --set weight_decay=0.0 "$@"; done
  for task in quiet broadcast; do train $task --registers 1 --seeds 0 "$@"; done
  for task in quiet broadcast; do train $task --name $task-decay0 --registers 1 --seeds 0 --set weight_decay=0.0 "$@"; done
}

full() {
  for task in quiet broadcast; do
    for decay in 0.1 0.0; do
      for lr in 1e-3 3e-4 3e-3; do
        train $task-gpu --name $task-gpu-decay$decay-lr$lr --registers 0,1,4 --seeds 0,1,2,3,4 --device cuda --workers 1 \
          --set weight_decay=$decay --set lr=$lr "$@"
      done
    done
  done
  variation() { train quiet-gpu --name "quiet-gpu-$1" --registers 0 --seeds 0,1,2 --device cuda --workers 1 --set "$2" "${@:3}"; }
  variation sigmoid attention=sigmoid "$@"
  variation layerscale layer_scale=1e-4 "$@"
  variation cls cls=1 "$@"
  variation sgd optimizer=sgd --set lr=0.1 "$@"
}

"$@"
