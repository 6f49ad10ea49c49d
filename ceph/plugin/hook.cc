// Makes an unmodified ceph-osd, ceph-objectstore-tool or ceph_test_objectstore know one store more.
//
// These programs export ObjectStore::create, but call it directly, so that a symbol of the same
// name is not enough: the beginning of the overload that they call becomes a jump to ours. What is
// not ours goes on to the overload with three arguments, which stays as it is.
#include <sys/mman.h>
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

__attribute__((constructor)) void install() {
    auto* at = reinterpret_cast<uint8_t*>(static_cast<Create>(&ObjectStore::create));
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* pages = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) & ~(page - 1));
    uint8_t jump[14] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *0(%rip), and where to
    Create to = &create;
    memcpy(jump + 6, &to, sizeof to);
    if (mprotect(pages, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC)) {
        perror("nacre: mprotect");
        exit(1);
    }
    memcpy(at, jump, sizeof jump);
    mprotect(pages, 2 * page, PROT_READ | PROT_EXEC);
}

}  // namespace
