#!/bin/bash
# `make install` into a folder: what is there runs from there.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
make --no-print-directory -s -C "$root" install PREFIX=/opt/nacre DESTDIR="$place"
here=$place/opt/nacre
for file in bin/nacre lib/nacre/libnacre_preload.so lib/nacre/libnacre_pmem.so share/man/man1/nacre-run.1 \
    share/bash-completion/completions/nacre share/zsh/vendor-completions/_nacre share/fish/vendor_completions.d/nacre.fish; do
    [[ -s $here/$file ]] || { echo "FAILED: $file is missing" >&2; exit 1; }
done
[[ -x $here/sbin/mount.nacre && $(tail -n 1 "$here/sbin/mount.nacre") == 'exec /opt/nacre/bin/nacre mount "$@"' ]] ||
    { echo "FAILED: the helper of mount(8) does not start the program" >&2; exit 1; }
"$here/bin/nacre" create --size 64M "$place/pool" >/dev/null
said=$(NACRE_SESSION_DIR=$place "$here/bin/nacre" run -q --pool "$place/pool" --mount "$place/mount" sh -c 'echo kept >"$0/f"; cat "$0/f"' "$place/mount")
[[ $said == kept ]] || { echo "FAILED: the installed program says '$said'" >&2; exit 1; }
[[ ! -e $here/lib/nacre/nacre-plans ]] || { echo "FAILED: plans of this machine are in a package" >&2; exit 1; }
"$here/bin/nacre" plans
[[ -s $here/lib/nacre/nacre-plans ]] || { echo "FAILED: no plans beside the library" >&2; exit 1; }
echo "installed       ok"
