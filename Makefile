# Each target does its own set-up (tools/setup.sh). The work itself is in CMake's presets.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help

JOBS ?= $(shell nproc)
INSTANCES ?=
KERNELS ?= eager
PART ?= 1/1
CHAIN_OF := --batch 8 --chain --steps 1 --no-plain --no-chart --out-graph build/chains
EAGER_PROGRAMS ?= 10000
INDUCTOR_PROGRAMS ?= 1000
CLAIMS ?= 0:2000
SANITIZED_CLAIMS ?= 0:300
PROGRAMS := PYTHONPATH=$(CURDIR)/build/dev/python OMP_NUM_THREADS=1 $(CURDIR)/.venv/bin/python -m programs --jobs $(JOBS)
# clang 14's sanitizers do not start on kernels that randomise addresses widely.
SETARCH := $(shell setarch -R true 2>/dev/null && echo setarch -R)
TORCH_PREFIX := .venv/bin/python -W ignore -c 'import torch; print(torch.utils.cmake_prefix_path)'
REPORT := build/report/template.html
REPORT_SOURCES := $(wildcard report/src/* report/*.json)
CPP_FILES := find headroom python tests benchmarks examples -name '*.h' -o -name '*.cpp'

.PHONY: help build report docs train wheel test demo bench lint format clean torch test-dev test-asan test-tsan test-runtime-asan lint-runtime test-ops test-models test-programs test-claims

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 26

build:  ## compile build/headroom
	tools/setup.sh build
	cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target headroom

report: $(REPORT) build  ## compile build/headroom with the report page

test: test-dev test-asan test-tsan lint  ## everything that must pass: tests, sanitizers, fuzzing, lint
	@echo "make test: all passed"

train:  ## compile build/headroom-train as well, which needs PyTorch
	tools/setup.sh build torch
	cmake --preset release -DHEADROOM_RUNTIME=ON -DCMAKE_PREFIX_PATH="$$($(TORCH_PREFIX))"
	cmake --build --preset release --parallel $(JOBS) --target headroom headroom-train

demo: train  ## train a GPT and a DenseNet, plainly and in a third of the memory
	@tools/demo.sh

bench:  ## compile and run the benchmarks (INSTANCES=FOLDER: with more graphs for auto)
	tools/setup.sh bench torch
	cmake --preset release -DHEADROOM_BENCHMARKS=ON -DHEADROOM_RUNTIME=ON -DHEADROOM_PYTHON=ON -DPython_EXECUTABLE="$(CURDIR)/.venv/bin/python"
	cmake --build --preset release --parallel $(JOBS)
	PYTHONPATH=build/python .venv/bin/python benchmarks/capture_graphs.py build/graphs
	mkdir -p build/chains
	for model in vgg16 resnet50 densenet121 unet; do build/headroom-train $$model --image 128 $(CHAIN_OF)/$$model.json; done
	build/headroom-train gpt-tiny $(CHAIN_OF)/gpt-tiny.json
	python3 examples/make_networks.py --out-dir build/networks
	for layers in 12 24 48 96; do python3 examples/make_networks.py --out-dir build/blocks --layers $$layers gpt2 llama; done
	for bench in build/benchmarks/*_bench; do [[ $$bench == */auto_bench || $$bench == */place_bench ]] || $$bench; done
	build/benchmarks/auto_bench --time build/networks build/blocks
	build/benchmarks/auto_bench examples build/networks build/graphs build/chains $(INSTANCES)
	build/benchmarks/place_bench examples build/networks build/graphs build/chains $(INSTANCES)

wheel: $(REPORT)  ## build a wheel of the Python package in build/wheels, and try it in an empty environment
	tools/setup.sh wheel torch
	rm -rf build/wheels
	.venv/bin/python -m pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir build/wheels .
	HEADROOM_WHEEL="$$(ls build/wheels/*.whl)" .venv/bin/python -m pytest tests/python/test_wheel.py

$(REPORT): $(REPORT_SOURCES) report/build.py
	report/build.py

build/report/checked: $(REPORT_SOURCES)
	tools/setup.sh node
	cd report && npm ci --no-audit --no-fund && npm run check
	mkdir -p build/report && touch $@

test-dev: $(REPORT)  ## the tests, built by g++
	tools/setup.sh test torch
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS)
	ctest --preset dev --parallel $(JOBS)

test-asan:  ## the C++ tests under the address sanitizer, and short runs of the fuzz targets
	tools/setup.sh test
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS)
	$(SETARCH) ctest --preset asan --parallel $(JOBS)

test-tsan:  ## the tests that start threads under the thread sanitizer
	tools/setup.sh test
	cmake --preset tsan
	cmake --build --preset tsan --parallel $(JOBS) --target plan_test
	$(SETARCH) ctest --preset tsan --parallel $(JOBS)

test-runtime-asan:  ## the tests of the runtime under the address sanitizer, from C++ and from Python
	tools/setup.sh test torch
	cmake --preset runtime-asan
	cmake --build --preset runtime-asan --parallel $(JOBS)
	$(SETARCH) ctest --preset runtime-asan --parallel $(JOBS)

test-ops:  ## train all of PyTorch's operator and module samples through headroom (KERNELS=inductor: by Inductor's kernels)
	tools/setup.sh test torch
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target headroom_python
	PYTHONPATH=build/dev/python .venv/bin/python tests/python/operator_samples.py --kernels $(KERNELS)

test-models:  ## train models of torchvision, timm and transformers within five budgets each (PART=I/N: a part of them)
	tools/setup.sh test torch models
	cmake --preset dev
	cmake --build --preset dev --parallel $(JOBS) --target headroom_python
	PYTHONPATH=build/dev/python:build/models-packages OMP_NUM_THREADS=1 .venv/bin/python tests/python/model_budgets.py --part $(PART)

test-programs:  ## random training programs (EAGER_PROGRAMS, INDUCTOR_PROGRAMS: how many), after test-dev
	cd tests/python && $(PROGRAMS) --seeds 0:$(EAGER_PROGRAMS) --scripts $(CURDIR)/build/programs
	cd tests/python && $(PROGRAMS) --seeds 0:$(EAGER_PROGRAMS) --shuffle 2 --scripts $(CURDIR)/build/programs
	cd tests/python && $(PROGRAMS) --seeds 0:$(INDUCTOR_PROGRAMS) --kernels inductor --scripts $(CURDIR)/build/programs

test-claims:  ## what planners claim on random graphs against all schedules (CLAIMS, SANITIZED_CLAIMS: seeds)
	tools/setup.sh test
	cmake --preset dev -B build/claims -DHEADROOM_RUNTIME=OFF -DHEADROOM_PYTHON=OFF -DHEADROOM_BENCHMARKS=OFF
	cmake --build build/claims --parallel $(JOBS) --target claims
	build/claims/tests/claims --seeds $(CLAIMS)
	cmake --preset asan
	cmake --build --preset asan --parallel $(JOBS) --target claims
	$(SETARCH) build/asan/tests/claims --memory 0 --seconds 200 --seeds $(SANITIZED_CLAIMS)

lint: build/report/checked  ## check formatting, C++ by clang-tidy, Python by ruff, the report page by tsc
	tools/setup.sh test
	cmake --preset asan
	$(CPP_FILES) | xargs clang-format-14 --dry-run -Werror
	tools/tidy.py --jobs $(JOBS) build/asan
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	tools/sizes.py
	tools/surface.py

lint-runtime:  ## check what includes torch's headers by clang-tidy
	tools/setup.sh test torch
	cmake --preset asan
	cmake --preset runtime-asan
	tools/tidy.py --jobs $(JOBS) --except build/asan build/runtime-asan

format:  ## format C++ and Python files
	tools/setup.sh test
	$(CPP_FILES) | xargs clang-format-14 -i
	.venv/bin/ruff format .

docs:  ## make the documentation's site, build/site/index.html
	tools/setup.sh docs
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet

torch:  ## install PyTorch into .venv (TORCH=VERSION for another than 2.13.0)
	tools/setup.sh torch

clean:  ## remove what was built
	rm -rf build
