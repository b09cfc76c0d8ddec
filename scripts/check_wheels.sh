#!/usr/bin/env bash
# Builds every distribution, installs the wheels into a clean environment and trains from them.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for package in . plugins/*/; do
  .venv/bin/python -m build --installer uv --outdir "$work/dist" "$package" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
done
ls "$work/dist"

.venv/bin/python -m venv "$work/venv"
.venv/bin/uv pip install --quiet --python "$work/venv/bin/python" --constraint constraints.txt "$work"/dist/*.whl
cd "$work"
export PATH="$work/venv/bin:$PATH" OMP_NUM_THREADS=1
primus doctor
for engine in megatron torchtitan; do
  primus init --backend $engine $engine.yaml
done
primus train pretrain --config megatron.yaml --mock_data true --train_iters 3
primus train pretrain --config torchtitan.yaml --training.steps 3
echo "The wheels train."
