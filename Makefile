# `make run` and `make test` are all a newcomer needs: each makes .venv when it is missing.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# pytest workers; the suite is sized for two cores
WORKERS ?= 2
# arguments handed to `cdbench run` or to pytest
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install run test lint gate format clean

help:
	@echo "make run    install, then run the embedded demo (ARGS='--full' adds columns)"
	@echo "make test   install, then the whole check: ruff, mypy, pytest"
	@echo "make lint   ruff and mypy only"
	@echo "make gate   run configs/ci.yaml, and hold its counts against the committed baseline"
	@echo "make format let ruff rewrite the sources"
	@echo "make clean  remove caches and build output; 'rm -r $(VENV)' removes the environment"

install: $(STAMP)

# torch goes first: it is by far the largest, and a failure to fetch it should show at once.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "cdbench needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0 -c constraints.txt
	$(BIN)/python -m pip install --quiet -e ".[dev]" -c constraints.txt
	@touch $(STAMP)

run: $(STAMP)
	$(BIN)/cdbench run $(ARGS)

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A busy machine makes a run INVALID (3) for its times alone; the gate judges what stands all the same.
gate: $(STAMP)
	rm -rf build/gate
	mkdir -p build
	$(BIN)/cdbench run ci --stages none --out build/gate > build/gate.txt || test $$? -eq 3
	$(BIN)/cdbench compare build/gate --gate ci --require-baseline

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find cdbench tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
