#!/usr/bin/env bash
# Sets up and runs the main job: real text, a tokenizer trained on it, a small Llama trained on it by Megatron.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
. .venv/bin/activate
export OMP_NUM_THREADS=1

[ -e data/pydoc.json ] || primus data prepare pydoc --output data/pydoc --train-tokenizer 4096 --valid 0.05
primus train pretrain --config examples/quickstart/llama_tiny.yaml "$@"
primus report output/local/me/llama_tiny
