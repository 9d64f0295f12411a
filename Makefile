# make install | demo | test | proof | check | docs | lock | bench | clean, each with ARGS="..."
# e.g. make test ARGS="-m system", make lock ARGS=--upgrade

ARGS ?=
PYTHON ?= python3
export PYTHON

.PHONY: install demo test proof check docs lock bench clean

install: .venv/.installed
	@echo 'installed in .venv; try: make demo'

.venv/.installed: pyproject.toml requirements/install $(wildcard requirements/*.txt)
	@requirements/install
	@touch $@

demo: .venv/.installed
	@.venv/bin/reverie demo $(ARGS)

# Bytecode is kept: each worker, and each program that a test starts, would compile everything anew.
test: .venv/.installed
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 4 --dist worksteal $(ARGS)

# What takes minutes, and the laws with all their examples: hours on two cores.
proof: .venv/.installed
	EXAMPLES=all PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 4 --dist worksteal -m 'system or soak or hypothesis' -rP $(ARGS)

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
