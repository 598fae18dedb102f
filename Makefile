# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0

.DEFAULT_GOAL := help
.PHONY: help setup package engine toolchain mini harnesses model system status demo adapter test test-sdk harness-matrix fuzz kills lint smoke soak clean distclean

# Any Python from 3.8 on will do for the set-up; it finds the ones that the environments need.
PYTHON ?= python3
SETUP := $(PYTHON) tools/setup.py
BIN := .venv/bin
SOURCES := nemo_polar tests recipes conf tools benchmarks setup.py

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: ## what the demo needs: all of the below but mini, in order
	@$(SETUP) all

system: ## bubblewrap, where this may be installed
	@$(SETUP) system

package: ## .venv: the package and what its tests need
	@$(SETUP) package

toolchain: ## .polar/toolchain: Pi and the Node it runs on
	@$(SETUP) package toolchain

mini: ## mini-swe-agent, into .polar/toolchain (one minute, 420 MB)
	@$(SETUP) package mini

harnesses: package ## every harness that can be installed, into .polar/toolchain
	@$(BIN)/polar harness install all

engine: ## .venv-engine: the embedded CPU engine (vLLM, 3.5 GB)
	@$(SETUP) engine

model: ## .polar/models: the demo's policy
	@$(SETUP) engine base model

status: ## what is set up
	@$(SETUP) status

demo: setup ## a real harness, a real model, audited trajectories in runs/demo
	@$(BIN)/polar demo

test: package ## the test suite: no real engine, no vendor CLI
	@$(BIN)/python -m pytest -n auto -m "not engine and not harness and not soak and not gym"

test-sdk: package ## the vendors' own Python SDKs against the dialects; part of `make test`
	@$(BIN)/python -m pytest tests/wire -k sdk

harness-matrix: package ## every real CLI against a scripted model that answers adversarially: runs/harness-matrix (40 minutes at most)
	@$(BIN)/polar harness install all
	@$(BIN)/python -m tests.harness_matrix --out runs/harness-matrix

fuzz: package ## 10,000 mutated request bodies a dialect (POLAR_FUZZ_CASES, POLAR_FUZZ_SEED)
	@$(BIN)/python -m pytest tests/test_fuzz.py -m soak -s --timeout 3600

kills: package ## 100 kill -9 of the proxy under load, and a restart on 10,000 calls
	@$(BIN)/python -m pytest tests/capture/test_kill.py -m soak -s --timeout 600

lint: package ## ruff and pyright
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --line-length 128 $(SOURCES)
	@$(BIN)/pyright

smoke: setup ## one real engine and real harnesses (Pi, mini-swe-agent, Codex, Claude Code), end to end
	@$(BIN)/polar harness install pi mini_swe_agent codex claude_code
	@$(BIN)/python -m pytest -m "engine or harness" --timeout 600

soak: package ## the rules under random clients, faults and kills, for an hour (POLAR_SOAK_SECONDS)
	@$(BIN)/python -m pytest -s -m soak tests/test_stateful.py

adapter: ## make the demo's adapter again: demonstrations, then the fit
	@$(SETUP) system package toolchain engine base
	@$(BIN)/python -m nemo_polar.demo.generate --split train --count 192 > .polar/demonstrations.jsonl
	@$(BIN)/polar rollout --recipe demonstrations --overwrite
	@PYTHONPATH=. .venv-engine/bin/python recipes/demo/warm_start.py runs/demonstrations
	@$(SETUP) model

clean: ## caches and runs
	rm -rf runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find nemo_polar tests recipes tools conf -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## and everything that was set up
	rm -rf .venv .venv-engine .polar
