// Makes an unmodified ceph-osd, ceph-objectstore-tool or ceph_test_objectstore know one store more.
//
// These programs export ObjectStore::create, but call it directly, so that a symbol of the same
// name is not enough: the beginning of the overload that they call becomes a jump to ours. What is
// not ours goes on to the overload with three arguments, which stays as it is.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ceph_ver.h"
#include "common/version.h"
#include "store.h"

namespace {

using Create = std::unique_ptr<ObjectStore> (*)(CephContext*, const std::string&,
                                                const std::string&, const std::string&,
                                                osflagbits_t);

// Classes of another version may lie differently in memory.
bool same_version() {
    const std::string running = ceph_version_to_str();
    if (running == CEPH_GIT_NICE_VER) return true;
    fprintf(stderr, "nacre: this is Ceph %s, the store was built for %s\n", running.c_str(),
            CEPH_GIT_NICE_VER);
    return false;
}

// For tests whose program knows a fixed list of types: one of them may be replaced.
bool is_ours(const std::string& type) {
    const char* instead = secure_getenv("NACRE_INSTEAD_OF");
    return type == nacre_ceph::Store::TYPE || (instead && type == instead);
}

std::unique_ptr<ObjectStore> create(CephContext* cct, const std::string& type,
                                    const std::string& data, const std::string&, osflagbits_t) {
    if (!is_ours(type)) return ObjectStore::create(cct, type, data);
    if (!same_version()) return nullptr;
    return std::make_unique<nacre_ceph::Store>(cct, data);
}

// Through this file, as the units of Ceph forbid to make code writable (MemoryDenyWriteExecute).
bool overwrite_code(uintptr_t at, const void* bytes, size_t len) {
    const int fd = open("/proc/self/mem", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = pwrite(fd, bytes, len, static_cast<off_t>(at)) == static_cast<ssize_t>(len);
    close(fd);
    return done;
}

__attribute__((constructor)) void install() {
    auto at = reinterpret_cast<uintptr_t>(static_cast<Create>(&ObjectStore::create));
    uint8_t jump[14] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip), and where to
    Create to = &create;
    memcpy(jump + 6, &to, sizeof to);
    if (overwrite_code(at, jump, sizeof jump)) return;
    perror("nacre: /proc/self/mem");
    exit(1);
}

}  // namespace
