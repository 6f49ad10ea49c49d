// Going through an omap in order.
#include "keys.h"
#include "store.h"

namespace nacre_ceph {
namespace {

// Keys that are asked for at once: few at first, as many callers look at one.
constexpr size_t FIRST = 8, MOST = 512;

class OmapIterator : public ObjectMap::ObjectMapIteratorImpl {
public:
    OmapIterator(Store* store, CollectionRef collection, std::string object)
        : store(store), collection(std::move(collection)), object(std::move(object)) {
        seek_to_first();
    }

    int seek_to_first() override { return seek(""); }
    int lower_bound(const std::string& to) override { return seek(omap_key_of(to)); }
    int upper_bound(const std::string& after) override { return seek(omap_key_of(after) + '\0'); }
    bool valid() override { return at < list.size(); }
    int status() override { return 0; }
    std::string key() override { return std::string(omap_name_of(list.key(at))); }

    ceph::buffer::list value() override {
        ceph::buffer::list bytes;
        bytes.append(list.value(at).data(), list.value(at).size());
        return bytes;
    }

    int next() override {
        if (!valid()) return 0;
        if (++at < list.size() || list.size() < chunk) return 0;
        std::string from(list.key(at - 1));
        from.push_back('\0');
        return fill(from, std::min(MOST, 4 * chunk));
    }

private:
    int seek(const std::string& from) { return fill(from, FIRST); }

    // An omap that is gone is empty. Behind the longest key is one byte more than the longest has.
    int fill(const std::string& from, size_t keys) {
        chunk = keys;
        at = 0;
        int result = nacre_list_omap(store->opened(), slice(collection->name), slice(object),
                                     slice(std::string_view(from).substr(0, KEY_MAX + 1)), chunk,
                                     list.place());
        return result == -ENOENT ? 0 : store->answer(result);
    }

    Store* store;
    CollectionRef collection;
    const std::string object;
    List list;
    size_t at = 0, chunk = 0;
};

}  // namespace

ObjectMap::ObjectMapIterator Store::get_omap_iterator(CollectionHandle& handle,
                                                      const ghobject_t& object) {
    if (!exists(handle, object)) return ObjectMap::ObjectMapIterator();
    CollectionRef collection(static_cast<Collection*>(handle.get()));
    return std::make_shared<OmapIterator>(this, collection, key_of(object));
}

}  // namespace nacre_ceph
