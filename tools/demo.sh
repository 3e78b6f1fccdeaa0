#!/usr/bin/env bash
# Plans the examples and compares the planners, each at 0.6 of the memory that plain training takes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

show build/headroom planners
show build/headroom plan examples/gpt24.json --budget 0.6x
for file in examples/*.json; do
  show build/headroom compare "$file" --budgets 0.6x
done
