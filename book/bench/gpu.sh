#!/usr/bin/env bash
# Every figure of the page "Speed and cost" that wants a GPU, in one command from the project's root.
set -eu
cd "$(dirname "$0")/../.."
for model in vit_large_patch14_dinov2 vit_giant_patch14_dinov2; do
  "${PYTHON:-.venv/bin/python}" -m helpers bench --model "$model" --image-size 518 --images 512 --batch-size 16 \
    --device cuda --dtype bfloat16 --json "book/bench/gpu-$model.json" "$@"
done
