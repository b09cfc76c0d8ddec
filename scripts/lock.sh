#!/usr/bin/env bash
# Rewrites constraints.txt: the versions that were tested together. Run it, run the tests, commit it.
set -euo pipefail
cd "$(dirname "$0")/.."
{
  echo "# Versions tested together; written by scripts/lock.sh"
  .venv/bin/uv pip compile --quiet --upgrade --no-header --no-annotate --python .venv/bin/python \
    --constraint <(grep -hE '^(torch|triton|megatron-core|torchtitan|torchao|transformers)==' constraints.txt) \
    --extra data --extra tensorboard --extra wandb --extra mlflow --extra float8 --group dev pyproject.toml plugins/*/pyproject.toml | grep -v '^-e'
} >constraints.new
mv constraints.new constraints.txt
