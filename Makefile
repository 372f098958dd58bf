# Short names for the build; `make help` lists them. Everything is done by CMakePresets.json and scripts/bootstrap.
#
#   JOBS=n          parallel jobs (all cores by default)
#   DEVELOPER=OFF   warnings do not stop the build
#   CTEST_ARGS=...  for example CTEST_ARGS='-R status_test -V'
#   WHEEL_ARGS=...  for example WHEEL_ARGS=--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=release

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEVELOPER ?= ON
CTEST_ARGS ?=
WHEEL_ARGS ?=
MAKEFLAGS += --no-print-directory

configure = cmake --preset $(1) -DOCTAVO_DEVELOPER=$(DEVELOPER)
compile = cmake --build --preset $(1) -j $(JOBS)
ctest = ctest --preset $(1) -j $(JOBS) $(CTEST_ARGS)
sources = git ls-files --cached --others --exclude-standard -- $(1)
cxx_sources = $(call sources,'*.h' '*.cc' '*.c' '*.cu' '*.cuh')

.DEFAULT_GOAL := build
.PHONY: build test demo wheel asan neon tidy format format-check clean help

build: ## build everything into build/: the command is build/bin/octavo (the default)
	@scripts/bootstrap --no-python
	@$(call configure,dev)
	@$(call compile,dev)

test: ## build and run every test, C++ and Python
	@scripts/bootstrap
	@$(call configure,dev)
	@$(call compile,dev)
	@$(call ctest,dev)

demo: ## train a small model on the CPU in about two minutes: a sample, a memory table, an HTML report
	@scripts/bootstrap
	@$(call configure,dev)
	@$(call compile,dev) --target octavo_cli
	@rm -rf build/demo/run && mkdir -p build/demo
	build/bin/octavo data make-text build/demo/tales.txt --bytes 2M --force
	build/bin/octavo train examples/train/demo.yaml

wheel: ## build the Python package: dist/octavo-<version>-py3-none-<platform>.whl
	@scripts/bootstrap
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) .venv/bin/python -m pip --disable-pip-version-check wheel --no-build-isolation \
	  --no-deps --wheel-dir dist $(WHEEL_ARGS) .

asan: ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
	@scripts/bootstrap --no-python
	@$(call configure,asan)
	@$(call compile,asan)
	@$(call ctest,asan)

# Highway's headers do not depend on the processor, but the rest of /usr/include does: the cross compiler gets to see a
# folder that holds Highway alone.
HWY_DIR ?= /usr/include/hwy
neon: ## the C++ tests built for 64-bit Arm and run under qemu, in build-neon/
	@scripts/bootstrap --no-python --neon
	@mkdir -p build-neon/include && ln -sfn $(HWY_DIR) build-neon/include/hwy
	@$(call configure,neon)
	@$(call compile,neon)
	@$(call ctest,neon)

tidy: ## clang-tidy over everything that is compiled
	@scripts/bootstrap --no-python --lint
	@$(call configure,dev)
	@run-clang-tidy -quiet -p build -j $(JOBS) -extra-arg=-Wno-unknown-warning-option \
	  '^$(CURDIR)/(src|apps|tests/(?!torch/|train/)|benchmarks)/' 2>/dev/null  # those two: clang cannot read GCC's precompiled header

format: ## rewrite C++ and Python in the project's style
	@scripts/bootstrap --lint
	@$(cxx_sources) | xargs -r clang-format -i
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

format-check: ## fail where `make format` would change something
	@scripts/bootstrap --lint
	@$(cxx_sources) | xargs -r clang-format --dry-run --Werror
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .

clean: ## remove the build folders (.venv stays)
	rm -rf build build-release build-asan build-cuda build-neon

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
