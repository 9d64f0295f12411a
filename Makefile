# make install | demo | test | test-all | proof | check | docs | lock | bench | clean, each with ARGS="..."
# e.g. make test ARGS="-m system", make lock ARGS=--upgrade

ARGS ?=
PYTHON ?= python3
export PYTHON

.PHONY: install demo test test-all proof check docs lock bench clean

install: .venv/.installed
	@echo 'installed in .venv; try: make demo'

.venv/.installed: pyproject.toml requirements/install $(wildcard requirements/*.txt)
	@requirements/install
	@touch $@

demo: .venv/.installed
	@.venv/bin/reverie demo $(ARGS)

# Two workers for each core, because many tests wait for a server. Bytecode is kept: each worker, and each program that
# a test starts, would compile everything anew.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(shell expr 2 \* $(CORES)) --dist worksteal

# The unit tests.
test: .venv/.installed
	$(PYTEST) $(ARGS)

# The unit tests, then the integration and system tests with what they print: lost and doubled messages.
test-all: test
	$(PYTEST) -m '(integration or system) and not soak' -rfEP $(ARGS)

# What takes minutes, and the laws with all their examples: hours on two cores.
proof: .venv/.installed
	EXAMPLES=all $(PYTEST) -m 'system or soak or hypothesis' -rP $(ARGS)

check: .venv/.installed
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/vulture

docs: .venv/.installed
	.venv/bin/python tests/checks/configuration.py
	.venv/bin/python tests/checks/commands.py
	.venv/bin/python tests/checks/metrics.py

lock: .venv/.installed
	@requirements/lock $(ARGS)

bench: .venv/.installed
	@set -e; for bench in tests/bench/bench_*.py; do echo "== $$bench"; .venv/bin/python $$bench $(ARGS); done

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find gateway channels agent tests -name __pycache__ -type d -prune -exec rm -rf {} +
