# The two commands that matter: make run, make test. Both install what is missing (see scripts/bootstrap.sh).

.PHONY: build run test bench profile format lint asan tsan test-neon install clean help
.DEFAULT_GOAL := build

build: ## build the command: build/bin/tersor
	@scripts/bootstrap.sh run && scripts/build.sh release tersor

run: build ## build, then show what it does on a small model
	@scripts/demo.sh

test: ## build, then run the C++ and the Python tests
	@scripts/bootstrap.sh test && scripts/build.sh release && scripts/test.sh

bench: build ## measure decoding, linear layers and attention; JSON and charts go to bench/results/local
	@scripts/bootstrap.sh bench && scripts/bench.sh

profile: build ## show where decoding spends its time (perf, or callgrind)
	@scripts/profile.sh

asan: ## run the C++ tests under the address and undefined-behaviour sanitizers
	@scripts/bootstrap.sh run && scripts/build.sh asan && scripts/test.sh asan

tsan: ## run the C++ tests under the thread sanitizer
	@scripts/bootstrap.sh run && scripts/build.sh tsan && scripts/test.sh tsan

test-neon: ## run the tests of base, codec and kernels/cpu for 64-bit ARM under qemu
	@scripts/test_neon.sh

format: ## rewrite the C++ sources in the project's layout
	@scripts/bootstrap.sh lint && scripts/lint.sh format

lint: ## check layout and run clang-tidy
	@scripts/bootstrap.sh lint && scripts/build.sh release && scripts/lint.sh check

install: build ## install the command and the C++ library: make install PREFIX=/usr/local
	@scripts/build.sh release && cmake --install build --prefix "$(or $(PREFIX),/usr/local)"

clean: ## remove every build folder (the environment in .venv stays)
	@scripts/clean.sh

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
