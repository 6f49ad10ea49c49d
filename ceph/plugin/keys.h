// Names of objects as bytes that are ordered as Ceph orders the names.
#pragma once

#include <string>
#include <string_view>

#include "common/hobject.h"

namespace nacre_ceph {

// Where in a key the bits of the hash begin, the first one being the lowest.
constexpr size_t HASH_AT = 9;
// What the library takes.
constexpr size_t KEY_MAX = 64 << 10;

// The key of a name other than ghobject_t::get_max(), which has none. That of the end of a shard
// is for comparing only.
std::string key_of(const ghobject_t& name);

// The name of a key; false if it is none.
bool name_of(std::string_view key, ghobject_t* name);

}  // namespace nacre_ceph
