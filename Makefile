# Set-up is a plain virtual environment in .venv; every other target sets it up first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready

.PHONY: setup demo test lint types bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/digits.py

test: $(READY)
	$(BIN)/python -m pytest

# ruff does not follow the links in platform/paceline: the folders they point at are named as well.
LINTED := platform strategies tuners tests examples

lint: $(READY)
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

types: $(READY)
	$(BIN)/mypy

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

bench: $(BENCH_READY)
	$(BIN)/python -m compileall -q platform strategies tuners  # as an installed package is
	$(BIN)/python -m tests.benchmarks

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache
