# `make` lists the targets. Everything runs in .venv, which `make setup` creates.

# An existing .venv keeps its Python; PYTHON=... replaces it. A distribution's Python is preferred: it is built with
# profile-guided optimisation, which saves an eighth of the broker's CPU time. pyenv's default build is not.
PYTHONS := .venv/bin/python $(addprefix /usr/bin/,python3.11 python3.12 python3.13) python3.11 python3.12 python3.13 python3
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
first = $(shell for python in $(PYTHONS); do if $$python -c '$(1)' 2>/dev/null; then echo $$python; exit; fi; done)
ifndef PYTHON
PYTHON := $(or $(call first,import ensurepip; $(NEW_ENOUGH)),$(call first,$(NEW_ENOUGH)))
endif
BIN := .venv/bin
TESTS ?= tests
# Most tests wait for the processes that they start: four at a time keep two cores busy. Unit tests only compute.
JOBS ?= $(if $(filter tests/unit%,$(TESTS)),2,4)
DEMO_ARGS ?=
BENCH_ARGS ?=
SEEDS ?= 20000

# Containers often set this. Every process would then compile the tests again, and pytest rewrite their assertions.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo cluster test slow simulation soak copier kills proofs coordinators checker suites lint format bench throughput docs lock

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install Python packages, jars and tools (a second run takes a second)
	@$(if $(PYTHON),$(PYTHON),$(error No Python. Headrace needs Python 3.11 or newer: apt-get install python3.11)) scripts/setup.py

demo: setup ## run the main job: a web log through Headrace and Spark (DEMO_ARGS="--input FILE --json")
	@$(BIN)/headrace demo $(DEMO_ARGS)

cluster: setup ## start ZooKeeper and three Headrace brokers to experiment with (ARGS="--kafka --directory DIR")
	@$(BIN)/python -m tests.cluster.playground $(ARGS)

test: setup ## run the tests (TESTS=tests/unit for the unit tests)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "not slow" $(TESTS)

slow: setup ## run the long tests, and property-based tests with ten times the examples
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m "slow or hypothesis" \
	    --hypothesis-profile slow $(TESTS)

simulation: setup ## simulate groups, transactions and (every tenth seed) clusters with faults (SEEDS=10000 ARGS="--only cluster"); explains a failing seed
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

soak: setup ## simulate crashes of the storage code, from many seeds (SEEDS=1000)
	$(BIN)/python -m tests.crashes --seeds $(if $(filter command environment,$(word 1,$(origin SEEDS))),$(SEEDS),1000) $(ARGS)

copier: setup ## run Kafka's TransactionalMessageCopier while clients and brokers are killed (ARGS="--rounds 5")
	$(BIN)/python -m tests.copier $(ARGS)

kills: setup ## run a pipeline on a Spark cluster while driver, workers and broker are killed (ARGS="--kills 20 --seed 1")
	$(BIN)/python -m tests.pipeline.kills $(ARGS)

proofs: setup ## run clusters at length, with kills, pauses, moves, outages and controller failovers (ARGS="kills"; ARGS=--help)
	@$(BIN)/python -m tests.cluster.proofs $(ARGS)

coordinators: setup ## move coordinators between Kafka and Headrace under load (ARGS="--moves 10 --seed 1 --json")
	@$(BIN)/python -m tests.cluster.proofs.coordinators $(ARGS)

checker: setup ## simulate transactions with faults, from many seeds, and check the histories (SEEDS=200 JOBS=2)
	$(BIN)/python -m tests.checker --jobs $(JOBS) --seeds $(if $(filter command environment,$(word 1,$(origin SEEDS))),$(SEEDS),200) $(ARGS)

lint: setup ## check with ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

suites: setup ## run kafka-python's and librdkafka's own tests against Headrace (SUITES=kafka-python ARGS=--cluster)
	$(BIN)/python scripts/suites.py $(SUITES) $(ARGS)

bench: setup ## compare with Apache Kafka on this machine (BENCH_ARGS="--quick --check")
	@$(BIN)/python -m bench $(BENCH_ARGS)

throughput: setup ## measure the Spark pipeline: a backlog of two million lines, then the latency (ARGS="--lines 200000")
	@$(BIN)/python -m bench.pipeline $(ARGS)

docs: setup ## update the generated parts of docs/
	$(BIN)/python scripts/docs.py

lock: setup ## update requirements.lock from pyproject.toml (ARGS=--upgrade for newer versions)
	$(BIN)/uv pip compile pyproject.toml --extra all --group dev --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --custom-compile-command "make lock" -q $(ARGS) -o requirements.lock
