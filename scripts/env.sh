# Sourced by the scripts beside it: makes .venv hold what they need, and says so. Usage: need EXTRA
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

need() {
  local extra=$1 stamp=".venv/.installed-$1" wanted
  wanted=$(cat pyproject.toml constraints.txt | sha256sum)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  if [ ! -x .venv/bin/python ]; then
    local python found=
    for python in python3 python3.13 python3.12 python3.11; do  # one that is found may still not run (version managers)
      if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$python; break; fi
    done
    [ -n "$found" ] || { echo "Python 3.11 or newer is needed, and none was found" >&2; exit 2; }
    python=$found
    echo "== making .venv with $("$python" --version)"
    "$python" -m venv .venv
  fi
  echo "== installing wellhead[$extra] and what it needs, at the versions of constraints.txt"
  # torch first and by itself: asked for together with others, pip may look at newer and larger builds of it
  .venv/bin/python -c 'import torch' 2>/dev/null || .venv/bin/python -m pip install --progress-bar on --disable-pip-version-check "$(grep '^torch==' constraints.txt)" numpy -c constraints.txt 2>&1 | quiet
  .venv/bin/python -m pip install --progress-bar on --disable-pip-version-check -c constraints.txt -e ".[$extra]" 2>&1 | quiet
  .venv/bin/python -m wellhead.kernels.build || echo "== no compiled kernels here; going on with torch operators"
  echo "$wanted" > "$stamp"
}

# pip's own words, less the lines that say that something is there already or ignored
quiet() { grep -v -e 'already satisfied' -e 'is ignored: it is neither' -e '^Looking in' -e '^  *Preparing' -e '^  *Getting' -e '^  *Installing build' -e '^  *Checking' || true; }
