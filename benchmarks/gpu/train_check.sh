#!/usr/bin/env bash
# Compiles train_check against the torch of python3 and runs it at the batch sizes of the papers. Needs a GPU, g++ and a
# CUDA build of torch; nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
torch=$(python3 -W ignore -c 'import os, torch; print(os.path.dirname(torch.__file__))')
cuda=${CUDA_HOME:-/usr/local/cuda}
objects=build/gpu
mkdir -p "$objects"
compile() {
  g++ -std=c++20 -O2 -I. -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
    -isystem "$cuda/include" -c "$1" -o "$objects/${1//\//_}.o"
}
export torch cuda objects
export -f compile
printf '%s\n' headroom/{core,plan,runtime,zoo}/*.cpp benchmarks/gpu/train_check.cpp |
  xargs -P "$(nproc)" -I{} bash -c 'compile {}'
g++ "$objects"/*.o -o "$objects/train_check" -L"$torch/lib" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed \
  -ltorch -ltorch_cuda -ltorch_cpu -lc10 -lc10_cuda -lpthread
for network in "resnet50 64" "resnet101 32" "vgg19 64" "densenet121 32" "inception-v3 32" "unet 4" "gpt2 4"; do
  # shellcheck disable=SC2086
  "$objects/train_check" $network
done
