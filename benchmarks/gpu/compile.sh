#!/usr/bin/env bash
# Peak against step time beside PyTorch's own means, on a GPU: compile.sh resnet50|gpt2 warm|measure|exact.
#   warm     compiles the Python package's C++ side and, side by side, what Inductor compiles, so that it is in its cache
#   measure  all points one after another in one process
#   exact    gradients of some against those in higher precision
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$1 what=$2
case $model in
  resnet50)
    eager="eager:1x eager:5GiB eager:3.9GiB eager:least"
    torch="torch:1.0 torch:0.7 torch:0.5 torch:0.3 torch:0.15 torch:0.0"
    ours="inductor:least inductor:1x inductor:10.2GiB inductor:6.12GiB inductor:5.5GiB inductor:4GiB inductor:3.6GiB"
    ;;
  gpt2)
    eager="eager:1x eager:10GiB eager:5.2GiB eager:least"
    torch="torch:1.0 torch:0.7 torch:0.5 torch:0.3 torch:0.0"
    ours="inductor:least inductor:1x inductor:10.2GiB inductor:7.4GiB inductor:5GiB inductor:4GiB inductor:3.1GiB"
    ;;
esac
export PYTHONUNBUFFERED=1 PYTHONPATH=python TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-/tmp/headroom-inductor}
[ -e python/headroom/_C.so ] || benchmarks/gpu/build_python.sh
curve() {
  python3 -W ignore benchmarks/gpu/compile_curve.py "$model" "$@" 2>&1 | grep --line-buffered "^$model "
}
# What it compiles is in Inductor's cache afterwards.
compile_beside() {
  while [ "$(jobs -r | wc -l)" -ge 10 ]; do wait -n || true; done
  TORCHINDUCTOR_COMPILE_THREADS=3 curve --turns 1 "$@" &
}
case $what in
  warm)
    # By what calls cost all plan, here and in measure. What takes longest is begun first.
    curve costs
    for point in $ours $torch; do compile_beside "$point"; done
    for point in torch:1.0 inductor:0.6x; do compile_beside --exact "$point"; done
    wait
    # Tried out beside other processes, which disturbs.
    find "$TORCHINDUCTOR_CACHE_DIR" -name '*.best_config' -delete
    ;;
  # The first two of PyTorch's once more at the end: how far apart they are is the run's noise.
  # shellcheck disable=SC2086
  measure) curve plain plain:1e-7 aot checkpoint $eager $torch compile+checkpoint $ours torch:1.0 torch:0.7 ;;
  # shellcheck disable=SC2086
  exact) curve --exact --turns 1 plain eager:0.6x torch:1.0 inductor:0.6x ;;
esac
