// Reading objects, attributes and omaps. Nothing here takes a lock: the library's reads do not wait
// for writers.
#include <sys/stat.h>

#include "keys.h"
#include "log.h"
#include "store.h"

using ceph::bufferlist;
using ceph::bufferptr;

namespace nacre_ceph {
namespace {

// Longest value that needs no second call.
constexpr size_t SHORT = 1024;

// Longest read whose buffer may be larger than what there is.
constexpr size_t SHORT_READ = 64 << 10;

nacre_slice within(const ObjectStore::CollectionHandle& handle) {
    return slice(static_cast<Collection*>(handle.get())->name);
}

bufferlist bytes_of(std::string_view bytes) {
    bufferlist made;
    made.append(bytes.data(), bytes.size());
    return made;
}

// A value of unknown length, by `ask(buffer, capacity, &len)`.
template <typename Ask>
int value_of(Ask ask, bufferptr* value) {
    char buffer[SHORT];
    size_t len = 0;
    int result = ask(buffer, sizeof buffer, &len);
    if (result == 0) *value = bufferptr(buffer, static_cast<unsigned>(len));
    while (result == -ERANGE) {
        *value = bufferptr(static_cast<unsigned>(len));
        result = ask(value->c_str(), value->length(), &len);
        if (result == 0) value->set_length(static_cast<unsigned>(len));
    }
    return result;
}

}  // namespace

bool Store::exists(CollectionHandle& handle, const ghobject_t& object) {
    if (object.is_max()) return false;
    return answer(nacre_object_exists(pool, within(handle), slice(key_of(object)))) == 0;
}

int Store::stat(CollectionHandle& handle, const ghobject_t& object, struct stat* found,
                bool allow_eio) {
    nacre_stat stat;
    int result =
        answer(nacre_object_stat(pool, within(handle), slice(key_of(object)), &stat), allow_eio);
    if (result < 0) return result;
    found->st_size = static_cast<off_t>(stat.size);
    found->st_blksize = 4096;
    found->st_blocks = static_cast<blkcnt_t>((stat.size + 511) / 512);
    found->st_nlink = 1;
    return 0;
}

// How many bytes to make room for; less than none: why it cannot be read. A length of 0 at offset 0
// asks for all.
int64_t Store::readable(nacre_slice within, nacre_slice object, uint64_t offset, size_t len) {
    if (len > 0 && len <= SHORT_READ) return static_cast<int64_t>(len);
    nacre_stat stat;
    if (int result = answer(nacre_object_stat(pool, within, object, &stat), true)) return result;
    const uint64_t rest = stat.size - std::min(offset, stat.size);
    const bool all = len == 0 && offset == 0;
    return static_cast<int64_t>(all ? rest : std::min<uint64_t>(len, rest));
}

// Damaged bytes are told, so that another OSD's may be read.
int Store::read(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
                bufferlist& to, uint32_t) {
    auto began = ceph::mono_clock::now();
    const std::string key = key_of(object);
    to.clear();
    const int64_t room = readable(within(handle), slice(key), offset, len);
    if (room <= 0) return static_cast<int>(room);
    size_t got = 0;
    bufferptr read(ceph::buffer::create_small_page_aligned(static_cast<unsigned>(room)));
    int result = answer(nacre_read(pool, within(handle), slice(key), offset, read.c_str(),
                                   read.length(), &got),
                        true);
    if (result < 0) return result;
    read.set_length(static_cast<unsigned>(got));
    if (got > 0) to.append(std::move(read));
    counters->inc(READS);
    counters->inc(BYTES_READ, got);
    counters->tinc(READ_LATENCY, ceph::mono_clock::now() - began);
    return static_cast<int>(got);
}

int Store::fiemap(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
                  bufferlist& found) {
    std::map<uint64_t, uint64_t> extents;
    int result = fiemap(handle, object, offset, len, extents);
    using ceph::encode;
    if (result >= 0) encode(extents, found);
    return result;
}

int Store::fiemap(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
                  std::map<uint64_t, uint64_t>& found) {
    const std::string key = key_of(object);
    const uint64_t end = offset + std::min<uint64_t>(len, UINT64_MAX - offset);
    nacre_extent extents[64];
    size_t count = 0;
    do {
        int result = answer(nacre_extents(pool, within(handle), slice(key), offset, end - offset,
                                          extents, std::size(extents), &count));
        if (result < 0) return result;
        for (size_t at = 0; at < count; at++) found[extents[at].offset] = extents[at].len;
        if (count > 0) offset = extents[count - 1].offset + extents[count - 1].len;
    } while (count == std::size(extents) && offset < end);
    return 0;
}

// Clients may ask for names that no attribute can have, which the library refuses.
int Store::getattr(CollectionHandle& handle, const ghobject_t& object, const char* name,
                   bufferptr& value) {
    const std::string key = key_of(object);
    if (!is_attribute_name(name)) return exists(handle, object) ? -ENODATA : -ENOENT;
    return answer(value_of(
        [&](void* to, size_t capacity, size_t* len) {
            return nacre_get_attribute(pool, within(handle), slice(key), nacre_str(name), to,
                                       capacity, len);
        },
        &value));
}

int Store::getattrs(CollectionHandle& handle, const ghobject_t& object,
                    std::map<std::string, bufferptr, std::less<>>& found) {
    List list;
    int result = answer(
        nacre_list_attributes(pool, within(handle), slice(key_of(object)), list.place()));
    if (result < 0) return result;
    found.clear();
    for (size_t at = 0; at < list.size(); at++) {
        std::string_view value = list.value(at);
        found.emplace(list.key(at), bufferptr(value.data(), static_cast<unsigned>(value.size())));
    }
    return 0;
}

int Store::list_omap(CollectionHandle& handle, const ghobject_t& object,
                     const std::function<void(std::string_view, std::string_view)>& visit) {
    List list;
    int result = answer(nacre_list_omap(pool, within(handle), slice(key_of(object)), slice(""),
                                        SIZE_MAX, list.place()));
    for (size_t at = 0; result == 0 && at < list.size(); at++)
        visit(omap_name_of(list.key(at)), list.value(at));
    return result;
}

int Store::omap_get(CollectionHandle& handle, const ghobject_t& object, bufferlist* header,
                    std::map<std::string, bufferlist>* found) {
    if (int result = omap_get_header(handle, object, header, false)) return result;
    return list_omap(handle, object, [found](std::string_view key, std::string_view value) {
        (*found)[std::string(key)] = bytes_of(value);
    });
}

int Store::omap_get_header(CollectionHandle& handle, const ghobject_t& object, bufferlist* header,
                           bool allow_eio) {
    const std::string key = key_of(object);
    bufferptr value;
    int result = answer(value_of(
                            [&](void* to, size_t capacity, size_t* len) {
                                return nacre_get_omap_header(pool, within(handle), slice(key), to,
                                                             capacity, len);
                            },
                            &value),
                        allow_eio);
    if (result < 0) return result;
    header->clear();
    if (value.length() > 0) header->append(value);
    return 0;
}

int Store::omap_get_keys(CollectionHandle& handle, const ghobject_t& object,
                         std::set<std::string>* found) {
    return list_omap(handle, object, [found](std::string_view key, std::string_view) {
        found->emplace(key);
    });
}

int Store::omap_get_values(CollectionHandle& handle, const ghobject_t& object,
                           const std::set<std::string>& keys,
                           std::map<std::string, bufferlist>* found) {
    const std::string key = key_of(object);
    if (int result = answer(nacre_object_exists(pool, within(handle), slice(key)))) return result;
    for (const std::string& wanted : keys) {
        const std::string stored = omap_key_of(wanted);
        if (stored.size() > KEY_MAX) continue;
        bufferptr value;
        int result = answer(value_of(
            [&](void* to, size_t capacity, size_t* len) {
                return nacre_get_omap(pool, within(handle), slice(key), slice(stored), to, capacity,
                                      len);
            },
            &value));
        if (result == -ENODATA) continue;
        if (result < 0) return result;
        bufferlist bytes;
        if (value.length() > 0) bytes.append(value);
        (*found)[wanted] = bytes;
    }
    return 0;
}

int Store::omap_check_keys(CollectionHandle& handle, const ghobject_t& object,
                           const std::set<std::string>& keys, std::set<std::string>* found) {
    std::map<std::string, bufferlist> values;
    int result = omap_get_values(handle, object, keys, &values);
    for (const auto& [key, value] : values) found->insert(key);
    return result;
}

}  // namespace nacre_ceph
