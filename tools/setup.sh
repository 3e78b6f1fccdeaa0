#!/usr/bin/env bash
# Installs what the Makefile's targets need and is missing: tools/setup.sh COMPONENT...
#   build  to compile headroom      bench  to compile its benchmarks
#   node   to type-check its page   docs   to make its site
#   wheel  to make a wheel          test   to run its tests
#   torch  PyTorch: 2.13.0, or what TORCH names (a version or a pip requirement), unless one can be imported already
#   models timm and torchvision, beside the .venv in build/models-packages: only make test-models reads them
# Packages come from apt (as root; otherwise the command to run is printed), Python packages go into .venv.
# Nothing is fetched when all is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages_of() {
  case $1 in
    build) echo g++ cmake ninja-build ccache nlohmann-json3-dev libcli11-dev ;;
    bench) echo "$(packages_of build)" libbenchmark-dev python3-venv ;;
    test) echo "$(packages_of bench)" libgtest-dev libgmock-dev \
      clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev chromium ;;
    docs) echo python3-venv ;;
    wheel) echo "$(packages_of build)" python3-venv python3-dev ;;
    node) type node npm >/dev/null 2>&1 || echo nodejs npm ;; # not beside those of another origin
    torch) echo python3-venv python3-dev ;;
    models) echo python3-venv ;;
    *) echo "setup.sh: no component '$1' (build, bench, docs, models, node, test, torch, wheel)" >&2 && return 2 ;;
  esac
}

install_packages() {
  local package missing=()
  if ! command -v apt-get dpkg-query >/dev/null; then
    echo "setup.sh: not a Debian system, these packages are taken to be there under their names here: $*" >&2
    return
  fi
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    echo "setup.sh: missing packages; please run:" >&2
    echo "  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update
  apt-get install -y --no-install-recommends "${missing[@]}"
}

has_torch() { "$1" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; }

# A torch that python3 has already is seen from .venv as well.
make_venv() {
  local options=()
  if has_torch python3; then options=(--system-site-packages); fi
  python3 -m venv "${options[@]}" .venv
}

install_python_packages() {
  local wanted stamp=.venv/headroom-requirements
  wanted=$(python3 --version && cat tools/requirements.txt)
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  make_venv
  .venv/bin/python -m pip install --quiet -r tools/requirements.txt
  echo "$wanted" >"$stamp"
}

install_torch() {
  local requirement=${TORCH:-2.13.0}
  case $requirement in [0-9]*) requirement="torch==$requirement" ;; esac
  if [ ! -x .venv/bin/python ] || ! has_torch .venv/bin/python; then make_venv; fi
  if [ -n "${TORCH:-}" ] || ! has_torch .venv/bin/python; then
    .venv/bin/python -m pip install "$requirement"
  fi
  .venv/bin/python -c 'import torch; print("torch", torch.__version__)'
}

# Without what they depend on, which is in .venv: pip would replace its torch. Models need no binary of torchvision's.
install_models() {
  local wanted folder=build/models-packages
  wanted=$(.venv/bin/python --version && cat tools/models-requirements.txt)
  if [ -f "$folder/installed" ] && [ "$(cat "$folder/installed")" = "$wanted" ]; then return; fi
  rm -rf "$folder"
  .venv/bin/python -m pip install --quiet --no-deps --target "$folder" -r tools/models-requirements.txt
  echo "$wanted" >"$folder/installed"
}

[ $# -gt 0 ] || { echo "usage: tools/setup.sh build|bench|docs|models|node|test|torch|wheel ..." >&2 && exit 2; }
for component in "$@"; do
  packages=$(packages_of "$component")
  # shellcheck disable=SC2086
  install_packages $packages
  case $component in
    bench | docs | test | wheel) install_python_packages ;;
    torch) install_torch ;;
    models) install_models ;;
  esac
done
