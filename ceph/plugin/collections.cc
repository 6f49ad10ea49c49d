// Collections: handles, and what is in them.
#include "keys.h"
#include "log.h"
#include "store.h"

namespace nacre_ceph {
namespace {

// Keys that are asked for at once.
constexpr size_t CHUNK = 256;

}  // namespace

CollectionRef Store::find(const coll_t& cid) {
    std::shared_lock guard(collections_lock);
    auto found = collections.find(cid);
    return found == collections.end() ? CollectionRef() : found->second;
}

ObjectStore::CollectionHandle Store::open_collection(const coll_t& cid) { return find(cid); }

ObjectStore::CollectionHandle Store::create_new_collection(const coll_t& cid) {
    auto made = ceph::make_ref<Collection>(cct, cid);
    std::lock_guard guard(collections_lock);
    new_collections[cid] = made;
    return made;
}

void Store::set_collection_commit_queue(const coll_t& cid, ContextQueue* queue) {
    std::shared_lock guard(collections_lock);
    if (auto found = collections.find(cid); found != collections.end()) {
        found->second->commit_queue = queue;
    } else if (auto made = new_collections.find(cid); made != new_collections.end()) {
        made->second->commit_queue = queue;
    }
}

int Store::list_collections(std::vector<coll_t>& found) {
    std::shared_lock guard(collections_lock);
    for (const auto& [cid, collection] : collections) found.push_back(cid);
    return 0;
}

bool Store::collection_exists(const coll_t& cid) { return find(cid) != nullptr; }

int Store::collection_empty(CollectionHandle& handle, bool* empty) {
    auto* collection = static_cast<Collection*>(handle.get());
    List first;
    int result = answer(
        nacre_list_objects(pool, slice(collection->name), slice(""), 1, first.place()));
    *empty = first.size() == 0;
    return result;
}

int Store::collection_bits(CollectionHandle& handle) {
    return static_cast<Collection*>(handle.get())->bits;
}

// From `start` on, before `end`, at most `max`; `next` is where to go on.
int Store::collection_list(CollectionHandle& handle, const ghobject_t& start,
                           const ghobject_t& end, int max, std::vector<ghobject_t>* found,
                           ghobject_t* next) {
    auto* collection = static_cast<Collection*>(handle.get());
    // `next` may be the same object as `start`.
    const bool nothing = start.is_max(), bounded = !end.is_max();
    std::string from = nothing ? std::string() : key_of(start);
    const std::string last = bounded ? key_of(end) : std::string();
    ghobject_t ignored;
    if (!next) next = &ignored;
    *next = ghobject_t::get_max();
    if (nothing) return 0;
    const size_t want = found->size() + static_cast<size_t>(std::max(max, 0));
    List names;
    do {
        size_t chunk = std::min(CHUNK, want - found->size() + 1);
        int result = answer(nacre_list_objects(pool, slice(collection->name), slice(from), chunk,
                                               names.place()));
        if (result < 0) return result;
        for (size_t at = 0; at < names.size(); at++) {
            ghobject_t name;
            if (!name_of(names.key(at), &name)) return answer(-EUCLEAN);
            if (found->size() == want || (bounded && names.key(at) >= last)) {
                *next = name;
                return 0;
            }
            found->push_back(name);
            from.assign(names.key(at)).push_back('\0');
        }
    } while (names.size() > 0);
    return 0;
}

}  // namespace nacre_ceph
