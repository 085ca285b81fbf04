PYTHON ?= python3
ENVS := .envs

# Of `make one`: a test, file or folder below tests/, and where to run it.
TEST ?= mpi/test_operations.py
ONE = $(if $(RANKS),--ranks $(RANKS)) $(if $(MPI),--mpi $(MPI)) $(if $(JAX),--jax $(JAX)) \
	$(if $(API),--api $(API)) $(if $(OPTIONS),--options="$(OPTIONS)")

.DEFAULT_GOAL := help
.PHONY: help demo dev one check test rust sanitize own range package conformance hosts bench \
	bench-quick lint format wheel portable emulated audit release versions docs \
	site-check pictures clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the shallow-water solver on 2 ranks, and write shallow_water.png
	$(PYTHON) tools/environments.py
	timeout 300 $(ENVS)/mpich/bin/mpiexec -n 2 $(ENVS)/mpich/bin/python examples/shallow_water.py --output shallow_water.png

dev: ## Make .envs/dev: all tools, and mpi4jax from the sources, with the core built in place
	$(PYTHON) tools/environments.py --dev

one: ## Run one test: make one TEST=mpi/properties/test_order.py [RANKS=2 MPI=openmpi JAX=0.6 API=notoken OPTIONS="-k loop"]
	@$(PYTHON) tools/run.py --test "$(TEST)" $(ONE)

check: lint ## What to run before each commit, in under three minutes
	@$(PYTHON) tools/run.py --only check

# Another fifth for the next commit.
test: export TEST_SHARE ?= $(shell expr `git rev-list --count HEAD 2>/dev/null || echo 0` % 5)/5
test: lint ## Set up everything and run a fifth of all tests (TEST_SHARE=0/1: all of them)
	$(PYTHON) tools/run.py

rust: ## Run the tests in Rust, and compare our declarations with the headers of MPI and XLA
	$(PYTHON) tools/run.py --only rust

sanitize: ## Run the tests in Rust under ASan, TSan, loom and Miri, where the toolchain has them
	$(PYTHON) tools/run.py --only sanitize

own: ## Run the own tests on MPICH and Open MPI, on 1 to 4 ranks
	$(PYTHON) tools/run.py --only own

range: ## Run the core of the own tests on other MPIs and JAXs, or see what one breaks: JAX=0.13.1
	$(PYTHON) tools/run.py --only range $(if $(JAX),--jax $(JAX))

package: ## Look at the wheels, at types, and at the names of the original
	$(PYTHON) tools/run.py --only package

conformance: ## Run the test suites of the original mpi4jax, unchanged
	$(PYTHON) tools/run.py --only conformance

hosts: ## Run tests on several virtual hosts, with mpiexec and srun, as root (10 minutes)
	$(PYTHON) tools/run.py --only hosts

bench: ## Measure against the original mpi4jax and others (half an hour), into build/bench
	$(PYTHON) benchmarks/run.py

bench-quick: ## Run the benchmarks with few and small samples, to see that they work
	$(PYTHON) benchmarks/run.py --quick --output build/bench-quick

lint: ## Check formatting, clippy, ruff, mypy and words
	@$(PYTHON) tools/lint.py

format: ## Format the sources, and write the forms of operations that follow from others
	$(PYTHON) tools/lint.py --fix

wheel: ## Build the wheels of both versions into dist/: with tokens, and without
	$(PYTHON) tools/environments.py --wheels dist

portable: ## Check that the core compiles for other systems and runs on older processors
	$(PYTHON) tools/portable.py

emulated: ## Run the tests of the core on aarch64, emulated by QEMU
	$(PYTHON) tools/emulated.py

audit: ## Look for known holes in the crates, and at their licenses (with cargo-deny)
	cargo deny --locked check

release: ## Build a release into dist/: wheels for old and new Linux, and check them
	$(PYTHON) tools/release.py

versions: ## Write new version numbers: make versions TOKEN=0.7.4 NOTOKEN=0.9.3
	$(PYTHON) tools/release.py --versions $(TOKEN) $(NOTOKEN)

docs: ## Build the documentation into build/docs, and that of the core into target/doc
	@$(PYTHON) tools/docs.py

site-check: ## Look at the documentation in Chromium: phone width, light and dark, search, links
	$(PYTHON) tools/browser.py

pictures: ## Draw the pictures of the documentation from runs of the examples
	$(PYTHON) tools/pictures.py

clean: ## Remove all that was built or set up
	rm -rf $(ENVS) target tests/*/target build dist .*_cache mpi4jax/*.so *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
