#!/usr/bin/env bash
# Makes .venv and installs everything into it. Does nothing when the pins have not changed since.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
pins=$(cat infra/requirements/*.txt pyproject.toml infra/setup.sh | sha256sum | cut -d' ' -f1)
stamp=$venv/.installed
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$pins" ]; then
    exit 0
fi

python=${PYTHON:-python3.11}
if ! command -v "$python" >/dev/null; then
    echo "Pondera needs Python 3.11; set PYTHON to its interpreter." >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

step() { echo "==> $1"; shift; "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
step "1/4 torch (CPU build where the index has one)" -r infra/requirements/torch.txt
step "2/4 sglang, without its CUDA requirements" --no-deps -r infra/requirements/nodeps.txt
step "3/4 the rest, pinned" -r infra/requirements/runtime.txt -r infra/requirements/dev.txt 2> >(grep -v 'resolver\|which is not installed\|which is incompatible' >&2)
step "4/4 pondera itself" --no-deps --editable .
echo "$pins" > "$stamp"
