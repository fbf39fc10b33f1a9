# Two commands do everything: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WHEEL_VENV := .venv-wheel
WHEEL_PIP := $(WHEEL_VENV)/bin/python -m pip --disable-pip-version-check --quiet
CODE := kernels stdl_engine bench examples docs/pages.py tests
# A run that takes too long is interrupted, and so prints what failed and what was still running; then it is killed.
WATCHDOG := timeout --foreground --signal=INT --kill-after=60
# worksteal, not loadfile or loadscope: those give a test that killed its worker to the next one, and may then wait for ever.
PARALLEL := --numprocesses auto --maxprocesses 8 --dist worksteal

# As on a CPU with AVX2 and no AVX-512: oneDNN's kernels, PyTorch's own, and what LLVM compiles for numba.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=
# Threads of each of the processes that test-avx2 runs side by side; those of `make test` have one.
THREADS := 2
# Triton's kernels, in its interpreter or compiled for a GPU, do not depend on the CPU.
OF_THE_CPU := -m 'not gpu' --ignore tests/kernels/test_inspect.py tests/kernels tests/rules tests/memory

.PHONY: help setup test test-avx2 test-wheel lint format docs bench bench-full bench-compare gpu demo clean

help:  ## list the commands
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

setup: $(VENV)/ready  ## build .venv (quick when nothing changed)

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c '' || { echo "$(PYTHON) cannot be run: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "stdl-engine needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dependencies into $(VENV) (the first time takes a few minutes)"
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(VENV)/ready-docs: $(VENV)/ready
	$(PIP) install --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

test: setup  ## run the tests
	$(WATCHDOG) 60m $(BIN)/python -m pytest $(PARALLEL)

test-avx2: setup  ## run the tests of kernels, rules and memory as on a CPU without AVX-512, with two threads
	$(AVX2) OMP_NUM_THREADS=$(THREADS) $(WATCHDOG) 30m $(BIN)/python -m pytest $(PARALLEL) $(OF_THE_CPU)

test-wheel: setup  ## build the wheel, install it into a clean environment, and use it in an empty folder
	rm -rf build dist $(WHEEL_VENV)
	$(PIP) wheel --no-deps --wheel-dir dist .
	$(BIN)/python -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' > dist/sdist.log
	$(PIP) wheel --no-deps --wheel-dir dist/again "$$(ls dist/*.tar.gz)"
	$(BIN)/python tests/installed.py same dist/*.whl dist/again/*.whl
	$(PYTHON) -m venv $(WHEEL_VENV)
	$(WHEEL_PIP) install --constraint constraints.txt "$$(ls dist/*.whl)"
	$(WHEEL_VENV)/bin/python tests/installed.py core
	$(WHEEL_PIP) install --constraint constraints.txt "$$(ls dist/*.whl)[train,convert]"
	$(WHEEL_VENV)/bin/python tests/installed.py all
	rm -rf $(WHEEL_VENV)

lint: setup  ## check style, formatting and types
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: setup  ## fix style and formatting
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: $(VENV)/ready-docs  ## build the documentation and the reference as a site, build/site/index.html
	$(BIN)/python docs/pages.py
	$(BIN)/zensical build --strict --config-file mkdocs.yml

bench: setup  ## measure speed and memory on this machine, in minutes; your page is bench/mine/benchmarks.md
	$(BIN)/python -m bench --quick

bench-full: setup  ## the same with all sizes and rounds: about an hour
	$(BIN)/python -m bench

bench-compare: setup  ## time the same cases with pytest-benchmark, beside the last saved run
	$(BIN)/python -m pytest bench --benchmark-enable --benchmark-only --benchmark-autosave --benchmark-compare

gpu: setup  ## run the tests and benchmarks of a GPU; the page to send back is bench/mine/gpu/gpu.md (DRY=1: without a GPU)
	$(BIN)/python -m bench gpu $(if $(DRY),--dry-run)

demo: setup  ## train a small spiking network on scikit-learn's digits by BPTT and by STDL, and compare
	$(BIN)/python -m stdl_engine.train digits --compare bptt stdl

clean:  ## remove everything that is not source
	rm -rf $(VENV) $(WHEEL_VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .benchmarks runs bench/mine
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
