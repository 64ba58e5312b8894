# Every command of this repository. `make` lists them; each also runs with PYTHON=python3.12.

PYTHON ?= python
# Each writes files that are checked in, and with --check compares them instead.
GENERATORS = $(wildcard tools/blocking.py tools/house.py tools/structure.py \
	tools/contract_doc.py tools/errors_doc.py)
LOCK = requirements-dev.lock

.DEFAULT_GOAL := help
.PHONY: guards help setup demo check test bench docs house generate lock

help:  ## list the commands
	@grep -hE '^[a-z]+: .*## ' $(MAKEFILE_LIST) | sort | \
		awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

setup:  ## install the locked tools and this package, editable
	$(PYTHON) -m pip install --require-hashes -r $(LOCK)
	$(PYTHON) -m pip install --no-deps --no-build-isolation -e .

demo:  ## show what the library does, in a minute
	$(PYTHON) -c 'from holdfast.cli import main; main()' demo

check:  ## style, types, floors, generated files and sizes, in half a minute
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command as lint; lint()'
	@set -e; for tool in $(GENERATORS); do \
		echo "$(PYTHON) $$tool --check"; $(PYTHON) $$tool --check; done
	$(PYTHON) -m pytest -q tests/test_tidy.py

test:  ## all tests and laws, in every mode
	$(PYTHON) -m pytest

bench:  ## measure; numbers depend on the machine
	$(PYTHON) -m bench turn

docs: generate  ## write the generated pages
	@echo "see docs/"

guards:  ## take each guard away and see which test notices (3 min)
	$(PYTHON) -m tools.guards

house:  ## draw docs/house.md
	$(PYTHON) tools/house.py

generate:  ## write every generated file
	@set -e; for tool in $(GENERATORS); do echo "$(PYTHON) $$tool"; $(PYTHON) $$tool; done

lock:  ## resolve requirements-dev.lock anew (needs pip-tools)
	CUSTOM_COMPILE_COMMAND="make lock" $(PYTHON) -m piptools compile --quiet \
		--generate-hashes --allow-unsafe --strip-extras --extra dev \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--output-file $(LOCK) pyproject.toml
