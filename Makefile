# `make help` says what there is; each takes ARGS="...", e.g. make test ARGS="-m system", make lock ARGS=--upgrade

ARGS ?=
PYTHON ?= python3
BENCH ?= gateway
export PYTHON

.PHONY: help install demo test test-all examples crash cluster soak proof check docs images messages lock bench trace profile clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.* ## (.*)/  make \1\t\2/' | expand -t 18

install: .venv/.tools ## install everything into .venv: the gateway, its extras, and the tools for tests
	@echo 'installed in .venv; try: make demo'

.venv/.installed: pyproject.toml requirements/install $(wildcard requirements/*.txt)
	@requirements/install
	@touch $@

.venv/.tools: .venv/.installed
	@requirements/install tools
	@touch $@

demo: .venv/.installed ## show what a bot does, on a private IRC server; installs only what that takes
	@.venv/bin/reverie demo $(ARGS)

# Two workers for each core, because many tests wait for a server. Bytecode is kept: each worker, and each program that
# a test starts, would compile everything anew.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(shell expr 2 \* $(CORES)) --dist worksteal

test: .venv/.tools ## run the unit tests
	$(PYTEST) $(ARGS)

# What fails beside others on a busy machine, at most three tests, runs once more by itself; it is named either way.
SLOW = -m '(integration or system) and not soak' -rfEP

test-all: test ## run the integration and system tests as well, with what they print of lost and doubled messages
	$(PYTEST) $(SLOW) $(ARGS) || { [ $$? = 1 ] && [ "$$(grep -c :: .pytest_cache/v/cache/lastfailed)" -le 3 ] && \
	    echo '== once more, each by itself: what failed beside others' && \
	    .venv/bin/python -m pytest $(SLOW) --last-failed --last-failed-no-failures none $(ARGS); }

examples: ## test the examples as their users have them: the wheel and each example in a fresh environment
	examples/test $(ARGS)

proof: .venv/.tools ## run what takes minutes, and the laws with all their examples: hours on two cores
	EXAMPLES=all $(PYTEST) -m 'system or soak or hypothesis' -rP $(ARGS)

crash: .venv/.tools ## kill the gateway, cut its connections and fill its disk: the crash suite without its long runs
	$(PYTEST) -m 'not soak' -rP tests/gateway/system/crash tests/gateway/store $(ARGS)
	.venv/bin/python -m pytest -m soak -rP tests/gateway/system/crash/test_storm.py -k all_faults

cluster: .venv/.tools ## play faults of three processes and their database: CLUSTER_MINUTES, CLUSTER_SEEDS
	.venv/bin/python -m pytest -m soak -rP tests/gateway/system/cluster $(ARGS)

soak: .venv/.tools ## the same for hours, and simulated weeks: all tests marked soak
	$(PYTEST) -m soak -rP $(ARGS)

check: .venv/.tools ## ruff, mypy, import contracts, dead code
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/vulture

docs: .venv/.tools ## write the generated pages of docs/ again
	.venv/bin/python tests/checks/configuration.py
	.venv/bin/python tests/checks/commands.py
	.venv/bin/python tests/checks/metrics.py
	.venv/bin/python tests/checks/permissions.py
	.venv/bin/python tests/checks/plugins_api.py

images: .venv/.tools ## take the pictures of the dashboard again
	.venv/bin/python tests/checks/images.py

messages: .venv/.tools ## collect the texts for people, and compile their translations
	.venv/bin/python tests/checks/messages.py

lock: .venv/.tools ## pin the requirements again
	@requirements/lock $(ARGS)

bench: .venv/.tools ## print the table of what an answer costs; CHECK=1: fail where a ratio is much worse; BENCH=week: run another one
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m tests.bench.bench_$(BENCH) $(if $(CHECK),--check) $(ARGS)

trace: .venv/.tools ## print the code and the commits that one plain message takes; ARGS=CHECKOUT for another one
	.venv/bin/python -m tests.tools.trace $(ARGS)

profile: .venv/.tools ## print where the time of one plain message goes, by package and by step; ARGS="--checkout DIR" for another one
	.venv/bin/python -m tests.tools.profiler $(ARGS)

clean: ## remove what was made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find reverie gateway channels agent tests -name __pycache__ -type d -prune -exec rm -rf {} +
