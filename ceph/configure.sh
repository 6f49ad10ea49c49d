#!/bin/bash
# Configures the source of Ceph in $CEPH (default /root/ceph) with most parts off, only to have its
# headers made: twelve of them are made by the build.
set -euo pipefail
cd "${CEPH:-/root/ceph}"
off=(JAEGER RADOSGW RADOSGW_SELECT_PARQUET MGR MGR_DASHBOARD_FRONTEND LTTNG BABELTRACE SPDK DPDK
    RDMA CEPHFS LIBCEPHFS KRBD RBD LIBRADOSSTRIPER LIBCEPHSQLITE FUSE XFS OPENLDAP GSSAPI
    CEPHFS_JAVA SYSTEMD MANPAGE SEASTAR GRAFANA BLUESTORE_PMEM RBD_RWL RBD_SSD_CACHE QATZIP BROTLI
    SELINUX SYSTEM_ROCKSDB)
on=(SYSTEM_BOOST SYSTEM_UTF8PROC SYSTEM_LIBURING SYSTEM_PMDK TESTS)
flags="-g0 -O2 -w"
cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DCMAKE_C_FLAGS_RELWITHDEBINFO="$flags" \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="$flags -fpermissive -DFMT_DEPRECATED_OSTREAM" \
    -DCMAKE_INSTALL_PREFIX=/usr -DWITH_PYTHON3=3 \
    $(printf -- '-DWITH_%s=OFF ' "${off[@]}") $(printf -- '-DWITH_%s=ON ' "${on[@]}")

# cmake leaves these job pools undefined when most parts are off.
for pool in heavy_compile_job_pool heavy_link_job_pool; do
    grep -q "^pool $pool" build/build.ninja ||
        sed -i "1i pool $pool\n  depth = 1\n" build/build.ninja
done
ninja -C build legacy-option-headers
