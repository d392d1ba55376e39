#!/usr/bin/env bash
# Every figure of the page "Speed and cost" that wants a GPU, from the project's root: `all`, or one part. What they write lies in
# book/bench/gpu, or in the folder that OUT names.
set -u
cd "$(dirname "$0")/../.."
out=${OUT:-book/bench/gpu} python=${PYTHON:-.venv/bin/python}
mkdir -p "$out"
gpu() { "$python" scripts/gpu.py "$@"; }
models=("vit_tiny_patch16_224 224" "vit_base_patch16_224 224" "vit_large_patch14_dinov2 518" "vit_giant_patch14_dinov2 518")

grid() { for model in "${models[@]}"; do gpu grid $model 1 16 256 --json "$out/grid-${model% *}.json"; done; }

rest() { for part in agree kernels decode; do gpu $part --json "$out/$part.json"; done; }

# Every notebook, on the reference models.
notebooks() {
  "$python" -m helpers run --all --run gpu -p device=cuda --jobs "${JOBS:-14}"
  gpu notebooks --json "$out/notebooks.json"
}

all() { rest && grid && notebooks; }

"$@"
