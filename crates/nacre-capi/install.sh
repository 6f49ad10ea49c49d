#!/bin/sh
# install.sh LIBRARY PREFIX: installs libnacre.so, nacre.h and the pkg-config file below PREFIX
set -eu
[ $# -eq 2 ] || { echo "usage: install.sh LIBRARY PREFIX" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2/lib/pkgconfig" "$2/include"
prefix=$(cd "$2" && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml" | head -n 1)
install -m 755 "$1" "$prefix/lib/libnacre.so.$version"
ln -sf "libnacre.so.$version" "$prefix/lib/libnacre.so.0"
ln -sf libnacre.so.0 "$prefix/lib/libnacre.so"
install -m 644 "$here/include/nacre.h" "$prefix/include/nacre.h"
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
