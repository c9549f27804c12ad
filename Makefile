# Everything that can be made. Each target does the set-up that it needs; what is done is not done again.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
RECIPE ?= recipes/tiny/smollm2-1p2d.yaml
MODEL := models/SmolLM2-135M-Instruct
PY := .venv/bin/python
STAMPS := .stamps
EXTRAS := test,bench,router,fabric,convert,otel
NATIVE := CMakeLists.txt $(wildcard python/pyfabric/_core/*) $(wildcard python/sglang/srt/kernels/cpu/CMakeLists.txt python/sglang/srt/kernels/cpu/native/*) $(wildcard python/sglang/srt/distributed/_shm/*)
PIP := $(PY) -m pip --disable-pip-version-check --no-input

# Stamps say what has been installed into .venv: without it they mean nothing.
ifeq ($(wildcard $(PY)),)
$(shell rm -rf $(STAMPS))
endif

.PHONY: test-foreign help setup model demo serve bench chaos test test-all test-sanitize test-sanitize-quick test-sanitize-threads fuzz contenders lint format clean

help: ## Say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMPS)/installed ## Set up .venv: Python packages and the native build

model: $(MODEL)/config.json ## Make the small model of the tiny recipes

demo: setup model ## Start 1 prefill and 2 decode engines, ask, measure, stop
	@$(PY) -m sglang.demo $(RECIPE)

serve: setup model ## Leave the same cluster running at 127.0.0.1:30000
	@$(PY) -m sglang.launch_cluster $(RECIPE)

bench: setup ## Measure what `make serve` runs; flags in ARGS
	@$(PY) -m sglang.bench_serving --dataset-name random --random-output-len 64 --num-prompts 32 --max-concurrency 8 $(ARGS)

test: setup model ## Run the tests, two halves side by side; pytest's flags in ARGS
	@$(PY) test/support/halves.py -m "not slow and not gpu" $(ARGS)

test-all: setup model ## Run the tests and the long ones
	@$(PY) -m pytest -m "not gpu" $(ARGS)

chaos: setup ## Break engines under load and check what was promised; flags in ARGS
	@$(PY) benchmark/chaos.py $(ARGS)

test-sanitize-quick: setup ## A short fuzz and tests of pyfabric with the address and undefined behaviour sanitizers
	@test/tools/sanitize.sh address quick -q

test-sanitize-threads: setup ## A short fuzz of pyfabric with the thread sanitizer, three nodes in one process
	@test/tools/sanitize.sh thread fuzz 20000 7

test-sanitize: setup ## Run fuzz and tests of pyfabric on builds with sanitizers: address and undefined, then thread
	@for kind in address thread; do test/tools/sanitize.sh $$kind fuzz && test/tools/sanitize.sh $$kind tests -q || exit 1; done

fuzz: setup ## Random operations on pyfabric's engines: make fuzz ARGS="tcp 1000000 1"
	@test/tools/fuzz.sh $(or $(ARGS),mapped 1000000 1)

contenders: ## A venv of its own with NIXL and Mooncake, for benchmark/messenger.py --others build/contenders/bin/python
	@test -x build/contenders/bin/python || $(PYTHON) -m venv build/contenders
	@build/contenders/bin/python -m pip install --disable-pip-version-check -q --no-deps numpy==2.4.6 nixl==1.5.2 nixl-cu12==1.5.1 mooncake-transfer-engine-non-cuda==0.3.13.post1

test-foreign: setup model ## SGLang's own bench_serving (its wheel, in a venv of its own) against our server
	@$(PY) test/foreign/sglang_bench.py

lint: setup ## Style, types, import direction, length of files
	@echo "==> ruff" && $(PY) -m ruff check .
	@echo "==> ruff format" && $(PY) -m ruff format --check .
	@echo "==> mypy --strict" && $(PY) -m mypy --strict python $(wildcard benchmark/*.py)
	@echo "==> import-linter" && .venv/bin/lint-imports
	@echo "==> length of files" && $(PY) test/tools/check_lines.py

format: setup ## Let ruff fix and format
	@$(PY) -m ruff check --fix . && $(PY) -m ruff format .

clean: ## Remove builds and the environment; models stay
	rm -rf .venv $(STAMPS) build

$(STAMPS)/system: .ci/system-packages
	@echo "==> checking system packages"
	@.ci/system-packages $(PYTHON)
	@mkdir -p $(@D) && touch $@

$(STAMPS)/venv: | $(STAMPS)/system
	@echo "==> environment .venv"
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@touch $@

# xgrammar declares triton (1 GB), which it needs on GPUs only: here it comes without its dependencies, after them.
# The exact pin keeps pip from taking a CUDA build of several GB. The build tools are here because the native module is
# built without isolation: its build then needs no second download, and is incremental.
$(STAMPS)/base: constraints-cpu.txt | $(STAMPS)/venv
	@echo "==> torch and build tools"
	@$(PIP) install -c constraints-cpu.txt torch==2.13.0 scikit-build-core nanobind cmake ninja
	@touch $@

$(STAMPS)/installed: pyproject.toml $(NATIVE) $(STAMPS)/base
	@echo "==> Python packages and the native build of pyfabric"
	@$(PIP) install -c constraints-cpu.txt --no-build-isolation -e .[$(EXTRAS)]
	@$(PIP) install -c constraints-cpu.txt llguidance apache-tvm-ffi
	@$(PIP) install -c constraints-cpu.txt --no-deps xgrammar
	@touch $@

$(MODEL)/config.json: | $(STAMPS)/installed
	@echo "==> $(MODEL)"
	@$(PY) -m sglang.tools.smollm2 --out $(MODEL)
