# `make demo` and `make test` do all of their own set-up; each does nothing twice.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MINUTES := 10
SEEDS := 2000
START := 1

.PHONY: help setup demo up check test lint bench test-faults simulate soak clean

help:
	@echo "make demo         build a shop of a million orders and show what was built"
	@echo "make up           keep that shop fresh, with new data coming, until ctrl-C"
	@echo "make check        lint, types, and every test without JVM but the 2,000 plays"
	@echo "make test         lint, types, and every test but the long ones"
	@echo "make test-faults  the tests that take minutes each"
	@echo "make simulate     play the control plane with SEEDS=2000 from START=1, on virtual time"
	@echo "make soak         kill processes for MINUTES=10, then compare every table"
	@echo "make bench        figures: bare Spark and Tidegate in the same run"
	@echo "make lint         ruff, mypy, import-linter"

setup: $(INSTALLED)
	@sh setup/java.sh
	@$(BIN)/python -m tidegate.spark.jars
	@$(BIN)/python -m tidegate.spark.archive

$(INSTALLED): pyproject.toml constraints.txt setup/venv.sh
	@sh setup/venv.sh $(VENV)
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

up: setup
	@$(BIN)/python examples/up.py

test: setup lint
	$(BIN)/pytest

check: $(INSTALLED) lint
	$(BIN)/pytest -m 'not long and not jvm and not plays' --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test-faults: setup
	$(BIN)/pytest -m long

simulate: $(INSTALLED)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --start $(START)

soak: setup
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
