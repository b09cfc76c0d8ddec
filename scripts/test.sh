#!/usr/bin/env bash
# Sets up and runs the checks and tests. Further arguments go to pytest; `--all` also runs what is marked slow.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
. .venv/bin/activate
export OMP_NUM_THREADS=1

select=(-m "not slow")
if [ "${1:-}" = --all ]; then
  select=()
  shift
  # What some slow tests need. Where it is missing they are skipped, but fail under CI.
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    scripts/system_packages.sh
  fi
fi

ruff check .
ruff format --check .
mypy
lint-imports
pytest "${select[@]}" "$@"
