#!/usr/bin/env bash
# Plans the examples and compares the planners, each near the least memory that its network can be trained in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

show build/headroom planners
show build/headroom plan examples/gpt24.json --budget 0.5x
show build/headroom compare examples/alexnet.json --budgets 0.97x
show build/headroom compare examples/vgg11.json --budgets 0.9x
show build/headroom compare examples/vgg13.json --budgets 0.9x
show build/headroom compare examples/vgg16.json --budgets 0.85x
show build/headroom compare examples/vgg19.json --budgets 0.8x
show build/headroom compare examples/resnet50.json --budgets 0.5x
show build/headroom compare examples/gpt24.json --budgets 0.5x
show build/headroom compare examples/unet.json --budgets 0.7x
