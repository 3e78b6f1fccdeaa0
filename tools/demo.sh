#!/usr/bin/env bash
# Plans a network from a file, then trains two networks on the CPU, plainly and inside a third of the memory that plain
# training adds to the weights: a GPT on this repository's text, and DenseNet-121 on a random batch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

show() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}

show 'build/headroom plan examples/gpt24.json --budget 0.5x'
show 'build/headroom-train gpt-tiny --layers 6 --width 128 --batch 8 --budget 0.33x --steps 40 --learning-rate 0.1 --text README.md docs/*.md headroom/*/*.h'
show 'build/headroom-train densenet121 --classes 10 --image 128 --batch 4 --budget 0.33x --steps 6 --learning-rate 0.05'
