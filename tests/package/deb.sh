#!/bin/bash
# Makes a Debian package of what is built, in folder $1. It runs where glibc is as new as the one it was linked with needs.
set -euo pipefail
out=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
nacre=${CARGO_TARGET_DIR:-$root/target}/release/nacre
version=$("$nacre" --version | cut -d ' ' -f 2)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
umask 022
make --no-print-directory -s -C "$root" install PREFIX=/usr DESTDIR="$stage"

# Symbols of the newest version of glibc that the files ask for.
needed() { objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1 | cut -d _ -f 2; }
files=("$stage/usr/bin/nacre" "$stage"/usr/lib/nacre/*.so)
strip --strip-debug "${files[@]}"
libc=$(needed "${files[@]}")
[[ -n $libc ]] || { echo "deb.sh: cannot tell which glibc is needed; is objdump (binutils) installed?" >&2; exit 1; }

gzip -9n "$stage"/usr/share/man/man1/*.1
doc=$stage/usr/share/doc/nacre
mkdir -p "$doc" "$stage/DEBIAN"
cp "$root/README.md" "$doc"
gzip -9nc "$root/CHANGELOG.md" >"$doc/changelog.gz"
cat "$root/LICENSE-MIT" - "$root/LICENSE-APACHE" >"$doc/copyright" <<<$'\nor, as you like:\n'
cat >"$stage/DEBIAN/control" <<CONTROL
Package: nacre
Version: $version
Architecture: amd64
Maintainer: The Nacre project <nacre@localhost>
Section: utils
Priority: optional
Depends: libc6 (>= ${libc}), libgcc-s1
Recommends: fuse3
Installed-Size: $(du -sk "$stage/usr" | cut -f 1)
Description: unmodified programs on non-volatile byte-addressable memory
 Nacre shows a pool of non-volatile memory, or of ordinary memory and files, to
 unmodified programs as a folder. Reads and writes do not enter the kernel; a
 write is durable when the call returns.
CONTROL
# Plans are of the machine's own C library: made here, again when that changes, and removed at the end.
cat >"$stage/DEBIAN/postinst" <<'SCRIPT'
#!/bin/sh
set -e
case "$1" in configure | triggered) nacre plans || : ;; esac
SCRIPT
cat >"$stage/DEBIAN/prerm" <<'SCRIPT'
#!/bin/sh
set -e
rm -f /usr/lib/nacre/nacre-plans
SCRIPT
chmod 755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm"
printf 'interest-noawait %s\n' {,/usr}/lib/x86_64-linux-gnu/libc.so.6 >"$stage/DEBIAN/triggers"
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
mkdir -p "$out"
rm -f "$out"/nacre_*.deb
dpkg-deb --root-owner-group --build "$stage" "$out/nacre_${version}_amd64.deb"
