PYTHON ?= python3
ENVS := .envs

.DEFAULT_GOAL := help
.PHONY: help demo test rust own range conformance bench bench-quick lint format wheel docs clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the shallow-water solver on 2 ranks, and write shallow_water.png
	$(PYTHON) tests/environments.py mpich
	timeout 300 $(ENVS)/mpich/bin/mpiexec -n 2 $(ENVS)/mpich/bin/python examples/shallow_water.py --output shallow_water.png

test: lint ## Set up everything and run all checks and tests
	$(PYTHON) tests/run.py

rust: ## Run the tests in Rust, and compare our declarations with the headers of MPI and XLA
	$(PYTHON) tests/run.py --only rust

own: ## Run the own tests on MPICH and Open MPI, on 1 to 4 ranks
	$(PYTHON) tests/run.py --only own

range: ## Run the core of the own tests on other MPIs and other versions of JAX
	$(PYTHON) tests/run.py --only range

conformance: ## Run the test suites of the original mpi4jax, unchanged
	$(PYTHON) tests/run.py --only conformance

bench: ## Measure against the original mpi4jax and others (15 minutes), into build/bench
	$(PYTHON) benchmarks/run.py

bench-quick: ## The same with few and small samples, to see that it works
	$(PYTHON) benchmarks/run.py --quick --output build/bench-quick

lint: ## Check formatting, clippy, ruff and mypy
	$(PYTHON) tests/lint.py

format: ## Format the sources
	$(PYTHON) tests/lint.py --fix

wheel: ## Build the wheel into dist/
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .

docs: ## Build the documentation into build/docs
	$(PYTHON) tests/environments.py mpich
	$(ENVS)/uv/bin/uv pip install --quiet --system-certs --python $(ENVS)/mpich sphinx furo myst-parser
	$(ENVS)/mpich/bin/python -P -m sphinx -W -q docs build/docs

clean: ## Remove all that was built or set up
	rm -rf $(ENVS) target tests/referee/target build dist
