// Ceph's ObjectStore on a pool of Nacre.
//
// A collection of Ceph is one of the library, an object too; its key is ordered like its name. What
// the library has no place for, the number of bits of collections, is the omap of one more object.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "common/Finisher.h"
#include "common/perf_counters.h"
#include "nacre.h"
#include "os/ObjectStore.h"

namespace nacre_ceph {

// Where the store keeps what is its own; no collection of Ceph is called so.
inline const std::string OWN_COLLECTION = ".ceph";
inline const std::string OWN_OBJECT = "store";

inline nacre_slice slice(std::string_view bytes) { return nacre_bytes(bytes.data(), bytes.size()); }

inline std::string_view view(nacre_slice bytes) {
    return {static_cast<const char*>(bytes.data), bytes.len};
}

// A list of the library's, dropped with its owner.
class List {
public:
    ~List() { nacre_list_drop(list); }
    List() = default;
    List(const List&) = delete;
    List& operator=(const List&) = delete;
    nacre_list** place() {
        nacre_list_drop(list);
        list = nullptr;
        return &list;
    }
    size_t size() const { return nacre_list_len(list); }
    std::string_view key(size_t at) const { return view(nacre_list_key(list, at)); }
    std::string_view value(size_t at) const { return view(nacre_list_value(list, at)); }

private:
    nacre_list* list = nullptr;
};

// What queues and reads are told by.
struct Collection : public ObjectStore::CollectionImpl {
    const std::string name;
    // Commits and their callbacks have the same order.
    std::mutex order;
    std::atomic<ContextQueue*> commit_queue{nullptr};
    std::atomic<int> bits{0};

    // All that was queued is committed.
    void flush() override {}
    bool flush_commit(Context*) override { return true; }

private:
    FRIEND_MAKE_REF(Collection);
    Collection(CephContext* cct, const coll_t& cid) : CollectionImpl(cct, cid), name(cid.to_str()) {}
};
using CollectionRef = ceph::ref_t<Collection>;

// Numbers of `perf dump`.
enum {
    COUNTERS_FIRST = 910000,
    COMMIT_LATENCY,
    TRANSACTIONS,
    OPERATIONS,
    BYTES_WRITTEN,
    READ_LATENCY,
    READS,
    BYTES_READ,
    OMAP_KEYS_SET,
    OMAP_KEYS_REMOVED,
    ATTRIBUTES_SET,
    POOL_BYTES,
    POOL_FREE,
    COUNTERS_LAST,
};

struct Changes;

class Store : public ObjectStore {
public:
    static constexpr const char* TYPE = "nacre";

    Store(CephContext* cct, const std::string& path);
    ~Store() override;

    // About the store.
    std::string get_type() override { return TYPE; }
    bool test_mount_in_use() override;
    int mkfs() override;
    int mount() override;
    int umount() override;
    // Asked by an OSD that stops. `false` would let it end as if it were killed; so it leaves the
    // pool, and the next start need not find out what a crash left.
    bool has_null_manager() const override { return true; }
    int fsck(bool deep) override;
    int mkjournal() override { return 0; }
    bool needs_journal() override { return false; }
    bool wants_journal() override { return false; }
    bool allows_journal() override { return false; }
    bool is_rotational() override { return false; }
    bool is_journal_rotational() override { return false; }
    bool can_sort_nibblewise() override { return true; }
    uint64_t get_min_alloc_size() const override { return 4096; }
    uint64_t estimate_objects_overhead(uint64_t objects) override { return objects * 512; }
    // Ceph puts a `_` before the name that a client gave.
    unsigned get_max_attr_name_length() override { return 254; }
    int validate_hobject_key(const hobject_t& object) const override;
    void set_fsid(uuid_d id) override { fsid = id; }
    uuid_d get_fsid() override { return fsid; }
    int statfs(store_statfs_t* found, osd_alert_list_t* alerts) override;
    int pool_statfs(uint64_t, store_statfs_t*, bool*) override { return -ENOTSUP; }
    void collect_metadata(std::map<std::string, std::string>* found) override;
    int get_devices(std::set<std::string>* found) override;
    objectstore_perf_stat_t get_cur_stats() override;
    void refresh_perf_counters() override;
    const PerfCounters* get_perf_counters() const override { return counters; }

    // Collections.
    CollectionHandle open_collection(const coll_t& cid) override;
    CollectionHandle create_new_collection(const coll_t& cid) override;
    void set_collection_commit_queue(const coll_t& cid, ContextQueue* queue) override;
    int set_collection_opts(CollectionHandle&, const pool_opts_t&) override { return -EOPNOTSUPP; }
    int list_collections(std::vector<coll_t>& found) override;
    bool collection_exists(const coll_t& cid) override;
    int collection_empty(CollectionHandle& handle, bool* empty) override;
    int collection_bits(CollectionHandle& handle) override;
    int collection_list(CollectionHandle& handle, const ghobject_t& start, const ghobject_t& end,
                        int max, std::vector<ghobject_t>* found, ghobject_t* next) override;

    // Reading.
    bool exists(CollectionHandle& handle, const ghobject_t& object) override;
    int stat(CollectionHandle& handle, const ghobject_t& object, struct stat* found,
             bool allow_eio) override;
    int read(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
             ceph::buffer::list& to, uint32_t flags) override;
    int fiemap(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
               ceph::buffer::list& found) override;
    int fiemap(CollectionHandle& handle, const ghobject_t& object, uint64_t offset, size_t len,
               std::map<uint64_t, uint64_t>& found) override;
    int getattr(CollectionHandle& handle, const ghobject_t& object, const char* name,
                ceph::buffer::ptr& value) override;
    int getattrs(CollectionHandle& handle, const ghobject_t& object,
                 std::map<std::string, ceph::buffer::ptr, std::less<>>& found) override;
    int omap_get(CollectionHandle& handle, const ghobject_t& object, ceph::buffer::list* header,
                 std::map<std::string, ceph::buffer::list>* found) override;
    int omap_get_header(CollectionHandle& handle, const ghobject_t& object,
                        ceph::buffer::list* header, bool allow_eio) override;
    int omap_get_keys(CollectionHandle& handle, const ghobject_t& object,
                      std::set<std::string>* found) override;
    int omap_get_values(CollectionHandle& handle, const ghobject_t& object,
                        const std::set<std::string>& keys,
                        std::map<std::string, ceph::buffer::list>* found) override;
    int omap_check_keys(CollectionHandle& handle, const ghobject_t& object,
                        const std::set<std::string>& keys, std::set<std::string>* found) override;
    ObjectMap::ObjectMapIterator get_omap_iterator(CollectionHandle& handle,
                                                   const ghobject_t& object) override;

    // Writing.
    int queue_transactions(CollectionHandle& handle, std::vector<Transaction>& transactions,
                           TrackedOpRef operation, ThreadPool::TPHandle* thread) override;

    nacre_pool* opened() const { return pool; }
    // What a call of the library for reading gave: damage ends the OSD, unless it may be told.
    int answer(int result, bool allow_eio = false) const;
    CollectionRef find(const coll_t& cid);

private:
    std::string pool_path() const { return path + "/pool"; }
    int lock();
    int lock_pool();
    void unlock();
    int open_pool();
    int make_own();
    int check_fsid();
    int load_collections();
    void make_counters();
    void prefer_one_thread();
    int apply(std::vector<Transaction>& transactions, Changes* changes);
    void finish(Changes& changes);
    void call_back(Collection* collection, std::vector<Transaction>& transactions);
    [[noreturn]] void give_up(int result, std::vector<Transaction>& transactions);
    int64_t readable(nacre_slice within, nacre_slice object, uint64_t offset, size_t len);
    int list_omap(CollectionHandle& handle, const ghobject_t& object,
                  const std::function<void(std::string_view, std::string_view)>& visit);

    nacre_pool* pool = nullptr;
    int lock_fd = -1, pool_lock_fd = -1;
    uuid_d fsid;
    Finisher finisher;
    PerfCounters* counters = nullptr;
    PerfCounters::avg_tracker<uint64_t> commit_latency;

    std::shared_mutex collections_lock;
    std::unordered_map<coll_t, CollectionRef> collections;
    // Given out, but not created yet.
    std::map<coll_t, CollectionRef> new_collections;
};

}  // namespace nacre_ceph
