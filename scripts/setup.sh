#!/usr/bin/env bash
# Makes .venv with everything that the repository needs, in the versions of constraints.txt. Fast when it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

works() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; }

find_python() {
  local candidate
  for candidate in "${PRIMUS_PYTHON:-}" python3.12 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python \
    "$(uv python find --no-python-downloads 3.12 2>/dev/null || true)"; do
    if [ -n "$candidate" ] && works "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  echo "primus needs Python 3.12 and none was found: not as python3.12 or python3, not under pyenv, not by uv." >&2
  echo "Install one (apt install python3.12 | pyenv install 3.12 | uv python install 3.12) or set PRIMUS_PYTHON." >&2
  return 3
}

wanted=$(cat scripts/setup.sh constraints.txt pyproject.toml plugins/*/pyproject.toml | cksum)
if [ -x .venv/bin/primus ] && [ "$(cat .venv/ready 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

python=$(find_python)
echo "Setting up .venv with $("$python" --version) (the first time downloads about 3 GB, mostly torch)"
[ -x .venv/bin/python ] && works .venv/bin/python || { rm -rf .venv && "$python" -m venv .venv; }
.venv/bin/python -m pip install --quiet "$(grep '^uv==' constraints.txt)"
.venv/bin/uv pip install --quiet --python .venv/bin/python --constraint constraints.txt \
  --editable '.[data,tensorboard]' --editable plugins/primus-megatron \
  --editable 'plugins/primus-torchtitan[float8]' --editable plugins/primus-preflight --editable 'plugins/primus-eval[tasks]' --group dev
echo "$wanted" >.venv/ready
