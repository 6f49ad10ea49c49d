// Names of objects as bytes that are ordered as Ceph orders the names, and keys of omaps.
#pragma once

#include <string>
#include <string_view>

#include "common/hobject.h"

namespace nacre_ceph {

// Where in a key the bits of the hash begin, the first one being the lowest.
constexpr size_t HASH_AT = 9;
// What the library takes.
constexpr size_t KEY_MAX = 64 << 10, ATTRIBUTE_NAME_MAX = 255;

// The key of a name other than ghobject_t::get_max(), which has none. That of the end of a shard
// is for comparing only.
std::string key_of(const ghobject_t& name);

// The name of a key; false if it is none.
bool name_of(std::string_view key, ghobject_t* name);

inline bool is_attribute_name(std::string_view name) {
    return !name.empty() && name.size() <= ATTRIBUTE_NAME_MAX;
}

// Clients may set a key of an omap that has no bytes, which the library refuses: a key of zeros
// alone, or of none, gets one zero more. That keeps the order.
inline bool is_zeros(std::string_view key) { return key.find_first_not_of('\0') == key.npos; }

inline std::string omap_key_of(std::string_view name) {
    std::string key(name);
    if (is_zeros(name)) key.push_back('\0');
    return key;
}

inline std::string_view omap_name_of(std::string_view key) {
    return is_zeros(key) ? key.substr(1) : key;
}

}  // namespace nacre_ceph
