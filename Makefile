# Thin: each target is one command in .venv, which is made on first use and redone when a pyproject.toml or
# constraints.txt changes. Needs Python 3.11 or later and make.
#
#   make demo      a clip, a contact sheet and a report in demo/
#   make test      lint, then every test; JOBS=4 for more cores, PYTEST='-m "not slow"' to pass options on
#   make lint      ruff, mypy --strict on the core, import contracts
#   make docs      what is generated from the manifests: pages in docs/, and the core's table of known switches
#   make soak      300 requests in four threads of one process: outputs as alone, and nothing grows; 10,000 random
#                  requests resolved, 100 that fail somewhere (minutes)
#   make bench     measurements, each beside its peer; BENCH=docs/bench keeps them as JSON
#   make setup     only the environment
#   make clean     everything that these targets wrote
#
# On Linux, PyPI's torch is a CUDA build of several GB. A CPU build is enough for every target:
#   make TORCH_INDEX=https://download.pytorch.org/whl/cpu demo
# pip's own variables (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS ...) work as ever.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST ?=
BENCH ?=
TORCH_INDEX ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
PROJECTS := $(wildcard wf_core/pyproject.toml wf_plugin_*/pyproject.toml plugins/*/pyproject.toml)
MEMBERS := $(filter-out wf_core,$(PROJECTS:/pyproject.toml=))
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.DELETE_ON_ERROR:
.PHONY: demo test lint docs soak bench setup clean

demo: $(STAMP)
	$(BIN)/wf run tiny-wan --prompt "a red 3 moving left" -s feature_cache=teacache -s vae_temporal_chunk_size=2 \
	  --out demo/clip.mp4 --report demo/report.json

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(STAMP)
	$(BIN)/python docs/generate.py

soak: $(STAMP)
	$(BIN)/python tests/soak/soak.py
	WF_FUZZ_REQUESTS=10000 WF_FAULTS=100 $(BIN)/python -m pytest -n $(JOBS) tests/test_resolve_fuzz_switches.py \
	  tests/test_fault_injection.py

bench: $(STAMP)
	for name in session attention cli resolve cache_overhead; do \
	  $(BIN)/python tests/bench/bench_$$name.py $(if $(BENCH),--json $(BENCH)/$$name.json) || exit 1; \
	done

setup: $(STAMP)

# --group needs pip 25.1; the build tools come before the distributions, which are built without isolation.
$(STAMP): pyproject.toml constraints.txt $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; name one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade 'pip>=25.1'
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(PIP) --group build
	$(PIP) --group test --no-build-isolation --editable './wf_core[media,compare]' $(MEMBERS:%=--editable ./%)
	@touch $@

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
