# Two commands do all the set-up they need: `make run` and `make test`.
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup run test lint unit e2e demo bench-overhead bench-stop clean

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

clean:           ## remove the environment and all state of this checkout
	rm -rf .venv .pondera
