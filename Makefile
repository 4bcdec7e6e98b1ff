# Two commands do all the set-up they need: `make run` and `make test`.
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup run test lint unit e2e demo bench-overhead bench-stop bench-search bench-peers bench-gym fuzz clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

setup:           ## make .venv and install everything (also done by every other target)
	@infra/setup.sh

run: setup       ## serve in the foreground on 127.0.0.1:8080
	@$(BIN)/pondera models prepare
	@exec $(BIN)/pondera serve

test: lint unit e2e  ## everything that must hold

lint: setup      ## style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup      ## tests without an engine
	$(BIN)/pytest -q -m "not e2e and not gpu"

e2e: setup       ## tests on the real engine with the tiny models
	$(BIN)/pondera models prepare
	$(BIN)/pytest -q -m "e2e and not gpu"

demo: setup      ## start, ask three questions of rising difficulty, stop
	@$(BIN)/python -m infra.demo

bench-overhead: setup  ## REST against the raw engine; what the orchestrator adds; idle cost
	@$(BIN)/python -m infra.bench.overhead

bench-stop: setup      ## self-consistency with the stop against a fixed 16, on held-out problems
	@$(BIN)/python -m infra.bench.stop

bench-search: setup    ## every technique: accuracy against total tokens; the promises of the search layer
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r infra/requirements/bench.txt
	@$(BIN)/python -m infra.bench.search

bench-peers: setup     ## its_hub, OptiLLM, TreeQuest and the bare engine beside Pondera
	@$(BIN)/python -m infra.bench.peers

bench-gym: setup       ## reasoning-gym families on SmolLM2 (`ARGS=--pilot`: which of them it can partly do)
	@$(BIN)/python -m infra.bench.gym $(ARGS)

fuzz: setup            ## the property tests of all techniques, 10,000 random runs each kind
	PONDERA_EXAMPLES=10000 $(BIN)/pytest -q --timeout=0 tests/search/test_properties.py \
		tests/search/test_step_properties.py tests/search/test_composite_properties.py

clean:           ## remove the environment and all state of this checkout
	rm -rf .venv .pondera
