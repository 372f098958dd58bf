# Short names for the build; `make help` lists them. Everything is done by CMakePresets.json and scripts/bootstrap.
#
#   JOBS=n               parallel jobs (all cores by default)
#   DEVELOPER=ON         warnings stop the build; the default where CI is set and for g++ 12, because other compilers have other
#                        warnings
#   OCTAVO_LIBTORCH=...  a LibTorch or torch folder of your own instead of the wheel in .venv
#   OCTAVO_CUDA=OFF      no CUDA backend, also where nvcc is found (ON: an error where it is not)
#   CTEST_ARGS=...       for example CTEST_ARGS='-R status_test -V'
#   PEERS_ARGS=...       for example PEERS_ARGS=--record, PEERS_ARGS='--device cuda -k adam8bit'
#   NEMO_ARGS=...        for example NEMO_ARGS='--nemo-python nemo/bin/python -k transcripts'
#   ARCHITECTURES=...    the GPUs of make wheel, for example ARCHITECTURES='80;90' (by default every supported one)
#   WHEEL_ARGS=...       for example WHEEL_ARGS=--config-settings=cmake.define.OCTAVO_CUDA=OFF

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
DEVELOPER ?= $(if $(or $(CI),$(filter 12,$(shell g++ -dumpversion 2>/dev/null))),ON,OFF)
OCTAVO_CUDA ?= AUTO
CTEST_ARGS ?=
PEERS_ARGS ?=
NEMO_ARGS ?=
WHEEL_ARGS ?=
ARCHITECTURES ?= release
MAKEFLAGS += --no-print-directory

configure = cmake --preset $(1) -DOCTAVO_DEVELOPER=$(DEVELOPER)
# $(call compile,PRESET,TARGET...): prints the number of steps and how long they take, then builds. A step of a cold build took
# $(step_seconds) processor-seconds on average (2026-11-20, g++ 12, no CUDA); steps that ccache knows take none.
step_seconds = 4.5
compile = NINJA_STATUS='[%f/%t] ' cmake --build --preset $(1) $(if $(2),--target $(2)) -- -n 2>/dev/null \
  | awk -v jobs=$(JOBS) -v cores=$(shell nproc 2>/dev/null || echo 2) '/^\[/ { split($$1, part, /[[\/\]]/); steps = part[3] } \
      END { if (jobs < cores) cores = jobs; \
            if (steps > 3) printf "building: %d steps, up to %.0f s on %d cores\n", steps, steps * $(step_seconds) / cores, cores }'; \
  NINJA_STATUS='[%f/%t, %e s] ' cmake --build --preset $(1) -j $(JOBS) $(if $(2),--target $(2))
# One more than processors: tests of ranks and of the command wait for other processes much of their time.
ctest = ctest --preset $(1) -j $(shell expr $(JOBS) + 1) $(CTEST_ARGS)
sources = git ls-files --cached --others --exclude-standard -z -- $(1)
cxx_sources = $(call sources,'*.h' '*.hpp' '*.cc' '*.c' '*.cu' '*.cuh')
# Where CI has no GPU, the kernels of two rules are compiled, and end as PTX: that they compile is all that is asked there.
# `make nightly` compiles those of all rules.
ptx_alone = $(if $(CI),$(if $(wildcard /dev/nvidia0),,ON))
cuda_rules = $(if $(ptx_alone),Adam;Lamb,all)
cuda = -DOCTAVO_CUDA=$(OCTAVO_CUDA) -DOCTAVO_CUDA_PTX_RULES=$(or $(ptx_alone),OFF) '-DOCTAVO_CUDA_RULES=$(cuda_rules)'
# A new build folder starts without the tests, which need packages of their own; once `make test` was run they stay.
new_folder = $(if $(wildcard build/CMakeCache.txt),,$(1))
no_tests_yet = $(call new_folder,-DOCTAVO_BUILD_TESTS=OFF)
# The demo trains on the CPU: without a GPU it does not wait for GPU code, which `make` and `make test` compile, nor for the
# kernels for AVX-512. Those for AVX2 are sufficient for a small model.
no_cuda_yet = $(if $(wildcard /dev/nvidia0),,$(call new_folder,-DOCTAVO_CUDA=OFF)) $(call new_folder,-DOCTAVO_AVX512=OFF)
all_kernels = $(cuda) -DOCTAVO_AVX512=ON

.DEFAULT_GOAL := build
.PHONY: build test nightly demo speech-demo check peers wheel asan tsan neon tidy format clean help

build: ## build the library, the command and the trainer: build/bin/octavo, build/lib/liboctavo.so (the default)
	@scripts/bootstrap build
	@$(call configure,dev) $(all_kernels) $(no_tests_yet)
	@$(call compile,dev,octavo octavo_cli)

test: ## build and run every test, C++ and Python, after `make check`
	@$(MAKE) check
	@$(call configure,dev) $(all_kernels) -DOCTAVO_BUILD_TESTS=ON
	@$(call compile,dev)
	@$(call ctest,dev)

nightly: cuda_rules = all
nightly: ## what `make test` omits because it is slow and rarely fails: docs/testing.md lists it; the kernels of all rules of update
	@scripts/bootstrap test
	@$(call configure,dev) $(all_kernels) -DOCTAVO_BUILD_TESTS=ON
	@$(call compile,dev,all octavo_nightly_checks)
	@$(call ctest,nightly)

demo: ## train a small model on the CPU: a sample, a memory table and an HTML report; four minutes on two cores, one once built
	@scripts/bootstrap build
	@$(call configure,dev) $(no_tests_yet) $(no_cuda_yet)
	@$(call compile,dev,octavo_demo)
	@rm -rf build/demo/run && mkdir -p build/demo
	build/bin/octavo-demo examples/train/demo.yaml build/demo
	@echo 'to let it write more: make && build/bin/octavo sample build/demo/run --prompt "Once upon a time" --tokens 400 --top-k 3'

speech-demo: ## the same with recordings, which espeak-ng speaks: a small recognizer, its word error rate and transcripts; five minutes after the build
	@scripts/bootstrap build --speech
	@$(call configure,dev) $(no_tests_yet) $(no_cuda_yet)
	@$(call compile,dev,octavo_cli)
	@rm -rf build/speech-demo/run && mkdir -p build/speech-demo
	build/bin/octavo data make-speech build/speech-demo/speech --force
	build/bin/octavo data make-tokenizer build/speech-demo/tokenizer build/speech-demo/speech/train.jsonl --vocab-size 256 --force
	build/bin/octavo train examples/train/speech.yaml data.train_manifest=build/speech-demo/speech/train.jsonl \
	  data.val_manifest=build/speech-demo/speech/val.jsonl model.tokenizer.dir=build/speech-demo/tokenizer \
	  output_dir=build/speech-demo/run device=cpu
	build/bin/octavo evaluate build/speech-demo/run build/speech-demo/speech/val.jsonl --checkpoint best --device cpu
	build/bin/octavo transcribe build/speech-demo/run --checkpoint best --device cpu $(foreach clip,1 2 3,build/speech-demo/speech/val/0000$(clip).flac)
	@echo 'the same three, as they were said:' && head -n 3 build/speech-demo/speech/val.jsonl
	espeak-ng -v en-us -w build/speech-demo/mine.wav "The doctor carried the clever carpenter. Please give the pancakes to the polite bear."
	build/bin/octavo transcribe build/speech-demo/run --checkpoint best --device cpu --format srt build/speech-demo/mine.wav
	@echo 'to try a sentence: espeak-ng -v en-us -w mine.wav "the baker found the lazy teacher"'
	@echo '                   build/bin/octavo transcribe build/speech-demo/run mine.wav --checkpoint best'
	@echo 'The model recognizes espeak-ng with the words of this demo. It does not recognize other words, people or noisy recordings:'
	@echo 'docs/guides/speech.md#try-it-without-a-gpu'

peers: ## the tests of torchao, bitsandbytes (optimizers) and transformers (transducer losses) on ours, and ours in NVIDIA NeMo, on the CPU; they are fetched
	@scripts/bootstrap test
	@$(call configure,dev) -DOCTAVO_BUILD_TESTS=ON
	@$(call compile,dev,octavo octavo_cli speech_tensors)
	@OCTAVO_LIBRARY=build/lib/liboctavo.so .venv/bin/python tests/peers/run_transducer_tests.py
	@OCTAVO_LIBRARY=build/lib/liboctavo.so .venv/bin/python tests/peers/run_peer_tests.py --all $(PEERS_ARGS)
	@.venv/bin/python tests/peers/run_nemo_tests.py $(NEMO_ARGS)

wheel: ## build the wheel of a release, for every supported GPU if there is nvcc: dist/octavo-<version>-py3-none-manylinux_2_28_<machine>.whl
	@scripts/bootstrap test
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) ARCHITECTURES='$(ARCHITECTURES)' scripts/build_wheel $(WHEEL_ARGS)

asan: ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
	@scripts/bootstrap test
	@$(call configure,asan)
	@$(call compile,asan)
	@$(call ctest,asan)

tsan: ## the C++ tests under ThreadSanitizer, in build-tsan/
	@scripts/bootstrap cxx
	@$(call configure,tsan)
	@$(call compile,tsan)
	@$(call ctest,tsan)

# Highway's headers do not depend on the processor, but the rest of /usr/include does: the cross compiler gets to see a
# folder that holds Highway alone.
HWY_DIR ?= /usr/include/hwy
neon: ## the C++ tests built for 64-bit Arm and run under qemu, in build-neon/
	@scripts/bootstrap cxx --neon
	@mkdir -p build-neon/include && ln -sfn $(HWY_DIR) build-neon/include/hwy
	@$(call configure,neon)
	@$(call compile,neon)
	@$(call ctest,neon)

# A build folder of its own, configured only: clang cannot read GCC's precompiled header, so this one has none.
TIDY ?= (libs|src|apps|benchmarks|cli|train|tests|examples)/.*[.]cc
tidy: ## clang-tidy over everything that is compiled (TIDY='train/.*' for a part)
	@scripts/bootstrap test --tidy
	@$(call configure,tidy)
	@run-clang-tidy -quiet -p build-tidy -j $(JOBS) -extra-arg=-Wno-unknown-warning-option '^$(CURDIR)/$(TIDY)$$' 2>/dev/null

format: ## rewrite C++ and Python in the project's style
	@scripts/bootstrap test
	@$(cxx_sources) | xargs -0r .venv/bin/clang-format -i
	@.venv/bin/ruff check --fix --quiet .
	@.venv/bin/ruff format --quiet .

check: ## format, ruff, the C ABI's declarations, layers, names, types and claims: fail where `make format` would change something, a generated file is old, a source includes or names what it may not, or a figure has no source
	@scripts/bootstrap test
	@$(cxx_sources) | xargs -0r .venv/bin/clang-format --dry-run --Werror
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --check --quiet .
	@.venv/bin/python scripts/generate_abi --check
	@.venv/bin/python scripts/check_layers
	@.venv/bin/python scripts/check_names
	@.venv/bin/python scripts/check_types
	@.venv/bin/python scripts/check_claims
	@.venv/bin/python scripts/benchmark_page --check

clean: ## remove the build folders (.venv stays)
	rm -rf build build-asan build-cuda build-neon build-release build-tidy build-tsan build-volta

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
