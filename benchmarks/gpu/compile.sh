#!/usr/bin/env bash
# Peak against step time beside PyTorch's own means, on a GPU: compile.sh resnet50|gpt2. Compiles the Python package's C++
# side, then everything that Inductor compiles side by side, so that the measuring run finds it in the cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
model=$1
case $model in
  resnet50)
    eager="eager:1x eager:5GiB eager:3.9GiB eager:least"
    torch="torch:1.0 torch:0.7 torch:0.5 torch:0.3 torch:0.15 torch:0.0"
    ours="inductor:1x inductor:7GiB inductor:5.5GiB inductor:4.5GiB inductor:3.6GiB inductor:least"
    ;;
  gpt2)
    eager="eager:1x eager:10GiB eager:5.4GiB eager:least"
    torch="torch:1.0 torch:0.7 torch:0.5 torch:0.3 torch:0.0"
    ours="inductor:1x inductor:8GiB inductor:6GiB inductor:4.4GiB inductor:3.5GiB inductor:least"
    ;;
esac
[ -e python/headroom/_C.so ] || benchmarks/gpu/build_python.sh
curve="python3 -W ignore benchmarks/gpu/compile_curve.py $model"
export PYTHONUNBUFFERED=1
# What calls cost is measured here, with nothing beside it.
$curve --turns 1 eager:1x inductor:0.9x >/dev/null 2>&1
for point in $torch compile+checkpoint $ours; do
  case $point in *1x) ;; *) $curve --turns 1 "$point" >/dev/null 2>&1 & ;; esac
  # Inductor starts workers of its own.
  if [ "$(jobs -r | wc -l)" -ge 4 ]; then wait -n || true; fi
done
wait
# shellcheck disable=SC2086
$curve plain aot checkpoint $eager $torch compile+checkpoint $ours 2>&1 | grep --line-buffered "^$model "
