// A key is: shard (1 byte), pool (8), hash with its bits reversed (4), namespace, locator or else
// name, name, snapshot (8), generation (8). Signed numbers are moved so that they order as bytes;
// numbers are big-endian. A string ends with 0 1, and its own zeros are 0 255.
#include "keys.h"

#include <cstdint>

namespace nacre_ceph {
namespace {

constexpr char ZERO = '\0', END = '\1', ESCAPED = '\xff';

void put_number(std::string* key, uint64_t number, int bytes) {
    for (int at = bytes - 1; at >= 0; at--) key->push_back(static_cast<char>(number >> (8 * at)));
}

void put_string(std::string* key, const std::string& text) {
    for (char c : text) {
        key->push_back(c);
        if (c == ZERO) key->push_back(ESCAPED);
    }
    key->push_back(ZERO);
    key->push_back(END);
}

// Takes parts of a key, until one is not there.
class Reader {
public:
    explicit Reader(std::string_view key) : rest(key) {}

    uint64_t number(size_t bytes) {
        if (rest.size() < bytes) {
            good = false;
            return 0;
        }
        uint64_t number = 0;
        for (char c : rest.substr(0, bytes)) number = number << 8 | static_cast<uint8_t>(c);
        rest.remove_prefix(bytes);
        return number;
    }

    std::string string() {
        std::string text;
        for (size_t at = 0; at + 1 < rest.size(); at++) {
            char c = rest[at];
            if (c == ZERO && rest[++at] == END) {
                rest.remove_prefix(at + 1);
                return text;
            }
            text.push_back(c);
        }
        good = false;
        return text;
    }

    bool complete() const { return good && rest.empty(); }

private:
    std::string_view rest;
    bool good = true;
};

constexpr uint64_t SIGN = uint64_t(1) << 63;

}  // namespace

std::string key_of(const ghobject_t& name) {
    const hobject_t& object = name.hobj;
    std::string key;
    key.reserve(48 + object.nspace.size() + object.get_key().size() + 2 * object.oid.name.size());
    put_number(&key, static_cast<uint8_t>(name.shard_id.id) ^ 0x80, 1);
    // The end of a shard: behind all that has a name in it.
    if (object.is_max()) return key.append(2 * HASH_AT, ESCAPED);
    put_number(&key, static_cast<uint64_t>(object.pool) ^ SIGN, 8);
    put_number(&key, object.get_bitwise_key_u32(), 4);
    put_string(&key, object.nspace);
    put_string(&key, object.get_effective_key());
    put_string(&key, object.oid.name);
    put_number(&key, object.snap.val, 8);
    put_number(&key, name.generation, 8);
    return key;
}

bool name_of(std::string_view key, ghobject_t* name) {
    Reader reader(key);
    hobject_t object;
    name->shard_id = shard_id_t(static_cast<int8_t>(reader.number(1) ^ 0x80));
    object.pool = static_cast<int64_t>(reader.number(8) ^ SIGN);
    object.set_bitwise_key_u32(static_cast<uint32_t>(reader.number(4)));
    object.nspace = reader.string();
    std::string locator = reader.string();
    object.oid.name = reader.string();
    if (locator != object.oid.name) object.set_key(locator);
    object.snap.val = reader.number(8);
    name->generation = reader.number(8);
    name->hobj = object;
    return reader.complete();
}

}  // namespace nacre_ceph
