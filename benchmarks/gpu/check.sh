#!/usr/bin/env bash
# Says whether steps on this GPU keep autograd's promises: gradients of real models against plain PyTorch, bit for bit,
# then random training programs and PyTorch's own operator samples. Usage: check.sh [PROGRAMS [PARTS]]
#   PROGRAMS  how many random programs (300)
#   PARTS     of how many parts of the operator samples one is run (8); 1: all
# Compiles the Python package's C++ side first. Needs torchvision and transformers, downloads nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
programs=${1:-300} parts=${2:-8}
export PYTHONUNBUFFERED=1 PYTHONWARNINGS=ignore PYTHONPATH=$PWD/python
[ -e python/headroom/_C.so ] || benchmarks/gpu/build_python.sh
status=0
python3 benchmarks/gpu/gradients.py --draws || status=1
(cd tests/python && python3 -m programs --seeds "0:$programs" --jobs "$(($(nproc) / 2))" --device cuda) || status=1
python3 tests/python/operator_samples.py --device cuda --samples 1 --part "1/$parts" || status=1
exit $status
