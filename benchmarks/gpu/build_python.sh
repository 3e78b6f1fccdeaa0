#!/usr/bin/env bash
# Compiles the Python package's C++ side against the torch of python3, without CMake's packages, into python/headroom/_C.so.
# nlohmann-json's headers are looked for in .cache/include as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
torch=$(python3 -W ignore -c 'import os, torch; print(os.path.dirname(torch.__file__))')
python=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
cuda=${CUDA_HOME:-/usr/local/cuda}
objects=build/gpu-python
mkdir -p "$objects"
rm -f "$objects"/*.o  # Those of files that are no more would be linked too.
compile() {
  g++ -std=c++20 -O2 -fPIC -fvisibility=hidden -DTORCH_EXTENSION_NAME=_C -I. -I.cache/include -isystem "$torch/include" \
    -isystem "$torch/include/torch/csrc/api/include" -isystem "$cuda/include" -isystem "$python" \
    -c "$1" -o "$objects/${1//\//_}.o"
}
export torch cuda python objects
export -f compile
# The report page is bundled by npm, which is not needed to measure: its place is taken by an empty one.
sed 's/@report_template@//' headroom/report/page_template.cpp.in >"$objects/page_template.cpp"
printf '%s\n' "$objects/page_template.cpp" headroom/{core,algorithm,io,report,runtime}/*.cpp headroom/plan/{,*/}*.cpp python/bindings/*.cpp | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
g++ -shared "$objects"/*.o -o python/headroom/_C.so -L"$torch/lib" -Wl,-rpath,"$torch/lib" -ltorch_python -ltorch \
  -ltorch_cpu -lc10 -lpthread
