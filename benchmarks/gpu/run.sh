#!/usr/bin/env bash
# Compiles the programs of this folder against the torch of python3 and runs them at the batch sizes of the papers. Needs
# a GPU, g++ and a CUDA build of torch; nothing is installed. Results go to standard output.
# Usage: run.sh [budgets|limited|table]...; all of them if none is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
torch=$(python3 -W ignore -c 'import os, torch; print(os.path.dirname(torch.__file__))')
cuda=${CUDA_HOME:-/usr/local/cuda}
objects=build/gpu
mkdir -p "$objects"
rm -f "$objects"/*.o  # Those of files that are no more would be linked too.
compile() {
  g++ -std=c++20 -O2 -I. -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
    -isystem "$cuda/include" -c "$1" -o "$objects/${1//\//_}.o"
}
export torch cuda objects
export -f compile
printf '%s\n' headroom/{core,algorithm,runtime,zoo}/*.cpp headroom/plan/{,*/}*.cpp benchmarks/gpu/*.cpp |
  xargs -P "$(nproc)" -I{} bash -c 'compile {}'
for program in train_check peak_table; do
  g++ "$objects"/headroom_*.o "$objects/benchmarks_gpu_$program.cpp.o" -o "$objects/$program" -L"$torch/lib" \
    -L"$cuda/lib64" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch -ltorch_cuda -ltorch_cpu -lc10 -lc10_cuda \
    -lcudart -lpthread
done

status=0
run_budgets() {
  for network in "vgg19 128" "resnet50 128" "densenet121 32" "vgg19 64" "resnet50 64" "resnet101 32" "inception-v3 32" \
    "unet 4" "gpt2 4"; do
    # shellcheck disable=SC2086
    "$objects/train_check" $network || status=1
  done
}
# Near the smallest budgets, with the process limited to 1.05 of them.
run_limited() {
  for network in "vgg19 128 9700000000" "resnet50 128 3400000000" "densenet121 32 1300000000"; do
    echo "$network"
    # shellcheck disable=SC2086
    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "$objects/train_check" $network || status=1
  done
}
run_table() { "$objects/peak_table" || status=1; }

for part in "${@:-budgets limited table}"; do
  for one in $part; do "run_$one"; done
done
exit $status
