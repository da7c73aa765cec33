# Everything needs Python 3.11+ and nothing else: the first target that is asked for makes .venv.
# `make test PYTHON=/path/to/python` chooses another interpreter for it.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
BASE := .venv/.carrypost-base
PAGES := .venv/.carrypost-pages
TOOLS := .venv/.carrypost-tools
STAMP := .venv/.carrypost-installed
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: help demo web test test-compiled soak compiled results package docs clean
.DEFAULT_GOAL := help

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' $(MAKEFILE_LIST)

demo: $(BASE) ## six real nodes on this machine, and a bus that carries between them
	@$(BIN)/carrypost demo

# The demonstration's record, if there is one; otherwise the start page, which has an example.
web: $(PAGES) ## runs in the browser: the record of the demonstration, or an example
	@$(BIN)/carrypost web $(wildcard demo-record) --open

test: $(STAMP) ## every check, with a table of what each took
	@$(BIN)/python tools/check.py

# First what is marked as long, wherever it is; then the searches of the ordinary tests, with many more examples; at last
# every other test that draws examples, with some more, and those that use Spark, on a cluster.
SEARCHES := tests/*/test_*_stateful.py tests/*/test_*_fuzz.py tests/gossip/test_interests.py tests/model/test_pattern.py
DRAWING := $(filter-out $(wildcard $(SEARCHES)),$(shell grep -lEw '^(from|import) hypothesis|spark' tests/test_*.py tests/*/test_*.py))
soak: $(STAMP) ## long searches for rare bugs
	@$(BIN)/pytest -m soak --hypothesis-profile=soak
	@$(BIN)/pytest -m "not soak" --hypothesis-profile=soak $(SEARCHES)
	@$(BIN)/pytest -m "not soak" --hypothesis-profile=more $(DRAWING)

compiled: $(PAGES) $(TOOLS) ## compile the core with a C compiler, some minutes: runs take a quarter less CPU time
	@$(BIN)/python tools/compiled.py

test-compiled: $(STAMP) ## tests in virtual time and on real nodes, with what `make compiled` made
	@$(BIN)/python tools/check.py --compiled

# pip takes the wheel for this platform where it fits. Without a C compiler there is the pure one only.
package: $(PAGES) $(TOOLS) ## wheels and sdist in dist, to install carrypost elsewhere
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation
	@CARRYPOST_COMPILE=1 $(BIN)/python -m build --no-isolation --wheel || echo "no wheel with a compiled core was made"
	@ls dist/*

docs: $(TOOLS) ## reference of the API, as pages in build/reference
	@$(BIN)/python tools/reference.py build/reference

results: $(STAMP) ## the pages of docs/results anew, hours of work; the same command continues after an interruption
	@$(BIN)/python tools/results.py

clean: ## remove what was made, .venv included
	rm -rf .venv dist build demo-record .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f src/carrypost/extensions.txt
	find src -name '*.so' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv that is already there is used as it is. Stamps are older than these files when they change.
$(BASE): pyproject.toml constraints.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "carrypost needs Python 3.11 or later" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv"; "$(PYTHON)" -m venv .venv; }
	@echo "installing carrypost and the libraries that it needs into .venv, about 20 MB"
	@$(INSTALL) . --quiet
	@touch $@

$(PAGES): $(BASE)
	@echo "installing the libraries of the web pages and of the emulator into .venv, about 60 MB"
	@$(INSTALL) '.[web,emu]' --quiet
	@touch $@

$(TOOLS): $(BASE)
	@echo "installing the tools of the checks into .venv, about 80 MB"
	@$(INSTALL) '.[dev]' --quiet
	@touch $@

# The last step is the long one: there pip itself shows how far it is.
$(STAMP): $(TOOLS)
	@echo "installing the laboratory into .venv: Spark, Java, Arrow, about 700 MB; some minutes where nothing is cached"
	@$(INSTALL) '.[lab]'
	@touch $@
