# The entries to this repository: `make run`, `make test`, `make bench`, `make dist`.

.PHONY: run tour test setup lint features audit unit stores bench dist docs fuzz soundness

# The server, with state in memory, example rules, and all listeners on this machine only.
run:
	@cargo run --release --package tidegate -- serve

# Every algorithm, deciding.
tour:
	@cargo run --quiet --package tidegate-examples --bin quickstart

# A whole run compiles almost everything once, and caches of increments would only make that slower.
test: export CARGO_INCREMENTAL = 0
test: setup lint unit

# Installs, through apt, what the tests need and this machine lacks.
setup:
	@./tools/setup

lint:
	cargo fmt --all --check
	cargo fmt --manifest-path bench/Cargo.toml --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	./tools/deny licenses bans sources
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --quiet

# The client with each of its features alone, which compiles its dependencies anew for each. So this is no part of `make test`.
features:
	@./tools/features

# Known vulnerabilities of dependencies. The database of advisories is cloned from GitHub, so this is no part of `make test`.
audit: setup
	@./tools/deny advisories

# Unit, property, contract, example and documentation tests. Most wait for servers and clocks, so more run at once than there are cores.
# Random tests draw the same cases in every run, so that a change is judged by itself. SEED=random draws other ones, as the scheduled workflow does.
SEED ?= 1
unit: export RUST_TEST_THREADS ?= 4
ifneq ($(SEED),random)
unit: export PROPTEST_RNG_SEED ?= $(SEED)
unit: export BOLERO_RANDOM_SEED ?= $(SEED)
endif
unit:
	cargo test --workspace --all-features

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
