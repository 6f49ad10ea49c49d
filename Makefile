# make run     build, make a pool, run real unmodified programs on it, print what they did
# make test    install what the tests need, then run them all
# make tidy    the laws that a program can check, format, lints
# make install PREFIX=/usr/local DESTDIR=    programs, libraries, manual pages, completions
# make deb     a Debian package in target/debian; make test-deb tries it in chroots of Debian 12 and 13
# make python       the Python package and its tests; make install-lib PREFIX=... the C library
# make ceph-test ceph-demo ceph-bench    the store for ceph-osd, with Debian 13 in a chroot (root, network)
# make clean   remove what was built

CARGO ?= cargo
export CARGO_TERM_PROGRESS_WHEN = never
TARGET := $(or $(CARGO_TARGET_DIR),target)
NACRE := $(TARGET)/release/nacre

# Debian packages: `gcc` links Rust programs; the rest is what the test programs are or need.
PACKAGES := gcc libc6-dev musl-tools fakechroot make binutils git sqlite3 python3 python3-venv perl fio postmark redis-server \
	postgresql redis-tools procps util-linux ca-certificates stress-ng dbench libpmem1 \
	libpmem-dev libpmemobj-dev pmdk-tools qemu-system-x86 ndctl e2fsprogs xfsprogs busybox-static \
	cpio kmod valgrind fuse3 liburing-dev python3-lmdb inotify-tools acl mariadb-server-core mariadb-client \
	rocksdb-tools kyotocabinet-utils tokyocabinet-bin qemu-utils golang-go fakeroot faketime libjemalloc2 bubblewrap btrfs-progs \
	squashfs-tools

PREFIX ?= /usr/local
DESTDIR ?=

.PHONY: all build run test checks-of-code checks-of-programs tidy unit explore programs conformance python torture icount packages \
	install-lib install deb test-deb ceph-test ceph-demo ceph-bench clean

all: build

build:
	$(CARGO) build --release --quiet -p nacre-cli -p nacre-preload -p nacre-pmem
	$(NACRE) plans || true

run:
	@echo "building the program and its libraries; the first time takes a minute or two"
	$(CARGO) build --release -p nacre-cli -p nacre-preload -p nacre-pmem
	$(NACRE) plans || true
	tests/programs/tour.sh

# Two rows of checks side by side: many wait for a disk, or use one processor. What each of their
# commands prints stays together.
test: packages build
	$(MAKE) --jobs=2 --output-sync=line checks-of-code checks-of-programs

checks-of-code:
	$(MAKE) tidy
	$(MAKE) unit
	$(MAKE) python
	$(MAKE) explore
	$(MAKE) icount

checks-of-programs:
	$(MAKE) programs
	$(MAKE) conformance
	$(MAKE) torture

tidy:
	$(CARGO) run --quiet -p xtask -- tidy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	$(CARGO) clippy --quiet -p nacre-explore --features explore --all-targets -- -D warnings

unit:
	$(CARGO) test --quiet --workspace

# Canaries, damage, and crashes for a minute; `cargo xtask explore` alone takes ten.
explore:
	$(CARGO) xtask explore --minutes 1

# The Python package, installed by pip as a user does; pip gets maturin from PyPI.
python:
	tests/python/run.sh

# libnacre.so, nacre.h, nacre(3) and nacre.pc below PREFIX.
install-lib:
	$(CARGO) build --release --quiet -p nacre-capi
	crates/nacre-capi/install.sh $(TARGET)/release/libnacre_capi.a $(or $(PREFIX),/usr/local)

programs: build
	tests/programs/run-all.sh
	ON_DISK=1 tests/programs/run-all.sh git sqlite tar python persist sessions checkers
	MODE=cached tests/programs/run-all.sh git sqlite tar python persist sessions
	STRIPE=3 ON_DISK=1 tests/programs/run-all.sh git sqlite tar kill persist
	COPIES=2 tests/programs/run-all.sh git sqlite tar kill persist postgres
	STRIPE=3 tests/programs/run-all.sh git sqlite tar kill persist postgres
	tests/package/install.sh

conformance: build
	tests/conformance/run.py
	FUSE=1 FSX_OPERATIONS=3000 tests/conformance/run.py
	FUSE=2 FSX_OPERATIONS=3000 tests/conformance/run.py fsx
	DISK=1 FSX_OPERATIONS=600 tests/conformance/run.py
	COPIES=2 FSX_OPERATIONS=1500 tests/conformance/run.py
	STRIPE=3 FSX_OPERATIONS=1500 tests/conformance/run.py
	tests/conformance/liburing.py
	DISK=1 tests/conformance/liburing.py

# Minutes instead of seconds, every step, power cuts: docs/testing.md.
torture: build
	$(CARGO) run --quiet -p xtask -- torture --seconds 30
	$(CARGO) run --quiet -p xtask -- torture --seconds 20 --canary
	$(CARGO) run --quiet -p xtask -- torture --seconds 20 --canary-objects
	$(CARGO) run --quiet -p xtask -- torture --mode cached --seconds 15
	$(CARGO) run --quiet -p xtask -- torture --behind --seconds 15
	$(CARGO) run --quiet -p xtask -- torture --disk --seconds 20
	$(CARGO) run --quiet -p xtask -- torture --disk --canary
	$(CARGO) run --quiet -p xtask -- torture --disk-faults
	$(CARGO) run --quiet -p xtask -- powercut --canary
	$(CARGO) run --quiet -p xtask -- powercut --disk --canary

# Instructions of each call, in a virtual machine, against those of docs/icount.tsv.
icount: build
	$(CARGO) run --quiet -p xtask -- icount --gate

# Only what is missing is installed; without the right to install, tests say what they lack.
packages:
	@tests/programs/packages.sh $(PACKAGES)

# As one user after `make` as another: only what is missing is built.
install:
	[ -x $(NACRE) ] || $(MAKE) build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/sbin $(DESTDIR)$(PREFIX)/lib/nacre $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -d $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions
	install -m 755 $(NACRE) $(DESTDIR)$(PREFIX)/bin/nacre
	install -m 644 $(dir $(NACRE))libnacre_preload.so $(dir $(NACRE))libnacre_pmem.so $(DESTDIR)$(PREFIX)/lib/nacre
	printf '#!/bin/sh\n# For lines of /etc/fstab whose type is nacre.\nexec %s/bin/nacre mount "$$@"\n' $(PREFIX) >$(DESTDIR)$(PREFIX)/sbin/mount.nacre
	chmod 755 $(DESTDIR)$(PREFIX)/sbin/mount.nacre
	[ -n "$(DESTDIR)" ] || $(PREFIX)/bin/nacre plans
	$(NACRE) man --all $(DESTDIR)$(PREFIX)/share/man/man1
	$(NACRE) completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/nacre
	$(NACRE) completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/nacre.fish
	$(NACRE) completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_nacre

deb: build
	tests/package/deb.sh $(TARGET)/debian

# Minutes, root and the network: not part of `make test`.
test-deb: deb
	tests/package/test-deb.sh $(TARGET)/debian/*.deb

# The store for Ceph (ceph/README.md): Debian's programs in a chroot of Debian 13, made by the first
# of these. Root, the network, 6 GB of disk; not part of `make test`.
ceph-test:
	ceph/test.sh

ceph-demo:
	ceph/demo.sh

ceph-bench:
	ceph/bench.sh

clean:
	$(CARGO) clean
