#!/bin/sh
# install.sh ARCHIVE PREFIX: links libnacre.so of libnacre_capi.a and installs it, nacre.h, the manual page
# and the pkg-config file below PREFIX
set -eu
[ $# -eq 2 ] || { echo "usage: install.sh ARCHIVE PREFIX" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2/lib/pkgconfig" "$2/include" "$2/share/man/man3"
prefix=$(cd "$2" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
# What the version script names is what is needed of the archive.
wanted=$(sed -n 's/^ *\(nacre_[a-z0-9_]*\);$/-Wl,-u,\1/p' "$here/nacre.map")
# shellcheck disable=SC2086
"${CC:-cc}" -shared -o "$prefix/lib/libnacre.so.$version.new" -Wl,-soname,libnacre.so.0 \
    -Wl,--version-script="$here/nacre.map" -Wl,--gc-sections -Wl,-z,relro,-z,now $wanted "$1" \
    -lgcc_s -lpthread -ldl -lm
chmod 755 "$prefix/lib/libnacre.so.$version.new"
mv "$prefix/lib/libnacre.so.$version.new" "$prefix/lib/libnacre.so.$version"
ln -sf "libnacre.so.$version" "$prefix/lib/libnacre.so.0"
ln -sf libnacre.so.0 "$prefix/lib/libnacre.so"
# What is as it was stays as old as it is: what includes it need not be built again.
install -C -m 644 "$here/include/nacre.h" "$prefix/include/nacre.h"
install -m 644 "$here/nacre.3" "$prefix/share/man/man3/nacre.3"
cat > "$prefix/lib/pkgconfig/nacre.pc" <<END
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: nacre
Description: Durable objects in non-volatile memory
Version: $version
Libs: -L\${libdir} -lnacre
Cflags: -I\${includedir}
END
