# `make eval` and `make test` set up .venv themselves; PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two OpenMP threads beside any other busy process stall each other: two test processes with one thread each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope

.PHONY: eval check test test-slow bench-prediction bench-logging clean

eval: $(VENV)/run.stamp
	$(BIN)/spec-eval

# The types are checked beside the tests: both use one core.
check: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy & types=$$!; \
	$(PYTEST) -q -m "not slow" tests/unit tests/test_configs.py tests/test_notebooks.py tests/test_caps.py && wait $$types

test: check
	$(PYTEST) -q -m "not slow" tests/integration
	$(PYTEST) -q --nbmake notebooks/01_first_run.ipynb

test-slow: $(VENV)/dev.stamp
	$(PYTEST) -q -m slow tests

# Predicted beside measured speed-up for k = 1, 2, 4, 8, one pinned thread. Wants a quiet machine.
bench-prediction: $(VENV)/run.stamp
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/prediction.py

# What share of a run's time goes into logging.
bench-logging: $(VENV)/run.stamp
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/logging_cost.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/run.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/run.stamp
