# The entries to this repository: `make run`, `make test`, `make nightly`, `make bench`, `make dist`.

export SEED

.PHONY: run tour test nightly setup lint unit features audit stores bench dist docs fuzz soundness

# The server, with state in memory, example rules, and all listeners on this machine only. It is compiled to start soon;
# `make run PROFILE=release` takes longer, and answers faster.
run:
	@./tools/run $(PROFILE)

# Every algorithm, deciding.
tour:
	@cargo run --quiet --package tidegate-examples --bin quickstart

# What every change must pass: installs what the tests need and this machine lacks, checks the code, and runs the tests. Says at
# the end how long each step took.
test:
	@./tools/toolchain clippy rustfmt
	@command -v python3 >/dev/null || ./tools/setup
	@./tools/test setup lint unit doc

# What is long by nature, at full strength: soak, all cases of random tests, fuzzing, other servers and browsers, sanitizers.
nightly:
	@./tools/toolchain clippy rustfmt
	@command -v python3 >/dev/null || ./tools/setup
	@./tools/test nightly

# Installs, through apt, what the tests need and this machine lacks.
setup:
	@./tools/setup

lint: setup
	@./tools/toolchain clippy rustfmt
	@./tools/test lint

# Unit, property, contract, example and documentation tests. SEED=random draws other random cases than those of every run.
unit: setup
	@./tools/toolchain
	@./tools/test unit doc

# The client with each of its features alone, which compiles its dependencies anew for each. So this is no part of `make test`.
features:
	@./tools/features

# Known vulnerabilities of dependencies. The database of advisories is cloned from GitHub, so this is no part of `make test`.
audit: setup
	@./tools/deny advisories

# The tests of the Redis store against other servers than the installed one: Redis 6.2 and 8, Valkey 8.1 and 9.1.
stores:
	@./tools/stores $(SERVERS)

# One benchmark with ONLY=name, all of them without. Each prints a table and writes target/bench/name.json.
bench:
	@./bench/run $(ONLY)

# What is released, in target/dist: an archive, a Debian package, licences, a bill of materials, checksums. The build takes minutes.
dist: setup
	@./tools/dist

# The guides as a site with a search, in target/docs/site, links checked.
docs:
	@./tools/setup docs
	@./tools/docs

# One fuzz target for MINUTES (5 unless said), under libFuzzer: make fuzz TARGET=name. Lists them without TARGET.
fuzz:
	@./tools/fuzz "$(TARGET)" $(MINUTES)

# loom, sanitizers and Miri, as far as they are installed.
soundness:
	@./tools/soundness
