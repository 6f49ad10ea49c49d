// The store as a whole: making, mounting, leaving it, and its figures.
#include "store.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/errno.h"
#include "log.h"
#include "keys.h"

namespace nacre_ceph {
namespace {

const std::string FSID = "fsid";
// The library has its own locks on the pool's devices, at places below 2^32.
constexpr off_t POOL_LOCK_AT = 1ll << 40;
constexpr const char* THREADS = "osd_op_num_threads_per_shard_ssd";

// Ceph changes an option while threads run only if somebody hears of it.
class ThreadsObserver : public md_config_obs_t {
    const char** get_tracked_conf_keys() const override {
        static const char* keys[] = {THREADS, nullptr};
        return keys;
    }
    void handle_conf_change(const ConfigProxy&, const std::set<std::string>&) override {}
};

// False also where nobody can tell.
bool is_memory(const std::string& path) {
    struct stat pool;
    struct statfs around;
    if (::stat(path.c_str(), &pool) || ::statfs(path.c_str(), &around)) return false;
    return S_ISCHR(pool.st_mode) || around.f_type == TMPFS_MAGIC;
}

}  // namespace

Store::Store(CephContext* cct, const std::string& path)
    : ObjectStore(cct, path), finisher(cct, "nacre", "nfin") {
    make_counters();
    if (is_memory(pool_path())) prefer_one_thread();
}

// Here a commit waits for nothing. A second thread of a shard is woken in vain, or hands each commit
// on to the first. An OSD makes its threads later; osd_op_num_threads_per_shard, if set, goes before
// this.
void Store::prefer_one_thread() {
    ThreadsObserver observer;
    std::stringstream refused;
    cct->_conf.add_observer(&observer);
    if (cct->_conf.set_val(THREADS, "1", &refused) < 0) derr << refused.str() << dendl;
    cct->_conf.remove_observer(&observer);
}

Store::~Store() {
    cct->get_perfcounters_collection()->remove(counters);
    delete counters;
}

// One OSD at a time: it remembers which collections there are.
int Store::lock() {
    lock_fd = ::open((path + "/nacre.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_fd < 0) return -errno;
    int result = flock(lock_fd, LOCK_EX | LOCK_NB) == 0 ? lock_pool() : -errno;
    if (result < 0) unlock();
    return result == -EWOULDBLOCK ? -EBUSY : result;
}

// Another folder, in another container perhaps, may name the same pool. What cannot be opened, or is
// not there yet, is told by the library.
int Store::lock_pool() {
    pool_lock_fd = ::open(pool_path().c_str(), O_RDWR | O_CLOEXEC);
    if (pool_lock_fd < 0) return 0;
    struct flock byte = {};
    byte.l_type = F_WRLCK;
    byte.l_whence = SEEK_SET;
    byte.l_start = POOL_LOCK_AT;
    byte.l_len = 1;
    return fcntl(pool_lock_fd, F_OFD_SETLK, &byte) == 0 ? 0 : -errno;
}

void Store::unlock() {
    if (pool_lock_fd >= 0) ::close(pool_lock_fd);
    ::close(lock_fd);
    pool_lock_fd = lock_fd = -1;
}

bool Store::test_mount_in_use() {
    int result = lock();
    if (result == 0) unlock();
    return result == -EBUSY;
}

// The pool is `pool` in the OSD's folder, a file or a link to a file or device. What is not there
// is made, as large as the option of the store in memory says: Ceph's list of options is fixed. It
// has that name when it is whole: this may be killed.
int Store::open_pool() {
    int result = nacre_pool_open(pool_path().c_str(), 0, &pool);
    if (result == 0 || access(pool_path().c_str(), F_OK) == 0) return result;
    uint64_t size = cct->_conf.get_val<Option::size_t>("memstore_device_bytes");
    std::string unfinished = pool_path() + ".new";
    ::unlink(unfinished.c_str());
    result = nacre_pool_create(unfinished.c_str(), size, &pool);
    if (result < 0) return result;
    return ::rename(unfinished.c_str(), pool_path().c_str()) == 0 ? 0 : -errno;
}

// An OSD may be made again, with the same id, on what it has made.
int Store::mkfs() {
    int result = lock();
    if (result < 0) return result;
    std::string known;
    if (fsid.is_zero() && read_meta(FSID, &known) >= 0) fsid.parse(known.c_str());
    if (fsid.is_zero()) {
        // Before the pool knows it: if this is killed in between, the next one finds it.
        fsid.generate_random();
        if ((result = write_meta(FSID, stringify(fsid))) < 0) return unlock(), result;
    }
    result = open_pool();
    if (result == 0) {
        result = make_own();
        nacre_pool_close(pool);
        pool = nullptr;
    } else {
        derr << "cannot open or make " << pool_path() << ": " << nacre_error_message() << dendl;
    }
    unlock();
    if (result == 0) result = write_meta(FSID, stringify(fsid));
    return result == 0 ? write_meta("type", TYPE) : result;
}

int Store::make_own() {
    if (nacre_collection_exists(pool, slice(OWN_COLLECTION)) == 0) return check_fsid();
    nacre_tx* tx = nacre_tx_begin();
    std::string id = stringify(fsid);
    nacre_tx_create_collection(tx, slice(OWN_COLLECTION));
    nacre_tx_create(tx, slice(OWN_COLLECTION), slice(OWN_OBJECT));
    nacre_tx_set_attribute(tx, slice(OWN_COLLECTION), slice(OWN_OBJECT), slice(FSID), slice(id));
    return nacre_commit(pool, tx);
}

// The pool is this OSD's.
int Store::check_fsid() {
    char id[64];
    size_t len = 0;
    int result = nacre_get_attribute(pool, slice(OWN_COLLECTION), slice(OWN_OBJECT), slice(FSID), id,
                                     sizeof id, &len);
    if (result < 0) {
        derr << pool_path() << " holds no OSD: " << nacre_error_message() << dendl;
        return result;
    }
    if (stringify(fsid) == std::string_view(id, len)) return 0;
    derr << pool_path() << " is of the OSD " << std::string_view(id, len) << ", this one is "
         << fsid << dendl;
    return -EINVAL;
}

int Store::mount() {
    std::string known;
    int result = read_meta(FSID, &known);
    if (result < 0) return result;
    if (!fsid.parse(known.c_str())) return -EINVAL;
    result = lock();
    if (result < 0) {
        derr << "another process uses " << path << " or its pool" << dendl;
        return result;
    }
    result = nacre_pool_open(pool_path().c_str(), 0, &pool);
    if (result == 0) {
        result = check_fsid();
        if (result == 0) result = load_collections();
        if (result < 0) nacre_pool_close(pool);
    } else {
        derr << "cannot open " << pool_path() << ": " << nacre_error_message() << dendl;
    }
    if (result < 0) {
        pool = nullptr;
        unlock();
        return result;
    }
    finisher.start();
    dout(1) << "mounted " << pool_path() << " with " << collections.size() << " collections"
            << dendl;
    return 0;
}

int Store::umount() {
    if (!pool) return 0;
    finisher.wait_for_empty();
    finisher.stop();
    collections.clear();
    new_collections.clear();
    int result = nacre_pool_close(pool);
    if (result < 0) derr << "cannot close the pool: " << nacre_error_message() << dendl;
    pool = nullptr;
    unlock();
    return result;
}

// Collections and their bits are in memory from here on.
int Store::load_collections() {
    List names;
    int result = nacre_list_omap(pool, slice(OWN_COLLECTION), slice(OWN_OBJECT), slice(""), SIZE_MAX,
                                 names.place());
    if (result < 0) return result;
    std::lock_guard guard(collections_lock);
    collections.clear();
    for (size_t at = 0; at < names.size(); at++) {
        coll_t cid;
        if (!cid.parse(std::string(names.key(at)))) {
            derr << "no name of a collection: " << names.key(at) << dendl;
            return -EINVAL;
        }
        auto collection = ceph::make_ref<Collection>(cct, cid);
        collection->bits = atoi(std::string(names.value(at)).c_str());
        collections[cid] = collection;
    }
    return 0;
}

int Store::fsck(bool) {
    List problems;
    int result = nacre_pool_check(pool_path().c_str(), problems.place());
    if (result < 0) derr << "check: " << nacre_error_message() << dendl;
    for (size_t at = 0; at < problems.size(); at++) derr << problems.key(at) << dendl;
    return result < 0 ? result : static_cast<int>(std::min<size_t>(problems.size(), INT_MAX));
}

int Store::validate_hobject_key(const hobject_t& object) const {
    return key_of(ghobject_t(object)).size() > KEY_MAX ? -ENAMETOOLONG : 0;
}

int Store::statfs(store_statfs_t* found, osd_alert_list_t* alerts) {
    if (alerts) alerts->clear();
    found->reset();
    int result = answer(nacre_pool_usage(pool, &found->total, &found->available));
    found->allocated = static_cast<int64_t>(found->total - found->available);
    found->data_stored = found->allocated;
    return result;
}

void Store::collect_metadata(std::map<std::string, std::string>* found) {
    uint64_t total = 0;
    if (pool) nacre_pool_usage(pool, &total, nullptr);
    (*found)["nacre_pool"] = pool_path();
    (*found)["nacre_pool_bytes"] = stringify(total);
    (*found)["nacre_version"] = stringify(nacre_version());
}

// What lies on memory is no block device.
int Store::get_devices(std::set<std::string>*) { return 0; }

int Store::answer(int result, bool allow_eio) const {
    if (result == 0 || result == -ENOENT || result == -ENODATA) return result;
    derr << "reading failed: " << nacre_error_message() << dendl;
    if (!allow_eio) ceph_abort_msg("the pool is damaged: let `nacre check` look at it");
    return -EIO;
}

void Store::make_counters() {
    PerfCountersBuilder b(cct, "nacre", COUNTERS_FIRST, COUNTERS_LAST);
    b.add_time_avg(COMMIT_LATENCY, "commit_latency", "From a transaction's arrival to its commit",
                   "cmt", PerfCountersBuilder::PRIO_CRITICAL);
    b.add_u64_counter(TRANSACTIONS, "transactions", "Transactions committed");
    b.add_u64_counter(OPERATIONS, "operations", "Operations in them");
    b.add_u64_counter(BYTES_WRITTEN, "bytes_written", "Bytes written to objects", nullptr, 0,
                      unit_t(UNIT_BYTES));
    b.add_time_avg(READ_LATENCY, "read_latency", "Time of a read");
    b.add_u64_counter(READS, "reads", "Reads of objects");
    b.add_u64_counter(BYTES_READ, "bytes_read", "Bytes read from objects", nullptr, 0,
                      unit_t(UNIT_BYTES));
    b.add_u64_counter(OMAP_KEYS_SET, "omap_keys_set", "Keys of omaps set");
    b.add_u64_counter(OMAP_KEYS_REMOVED, "omap_keys_removed", "Keys of omaps removed one by one");
    b.add_u64_counter(ATTRIBUTES_SET, "attributes_set", "Attributes set");
    b.add_u64(POOL_BYTES, "pool_bytes", "Size of the pool", nullptr, 0, unit_t(UNIT_BYTES));
    b.add_u64(POOL_FREE, "pool_free", "Free bytes of the pool", nullptr, 0, unit_t(UNIT_BYTES));
    counters = b.create_perf_counters();
    cct->get_perfcounters_collection()->add(counters);
}

void Store::refresh_perf_counters() {
    commit_latency.consume_next(counters->get_tavg_ns(COMMIT_LATENCY));
    uint64_t total = 0, free = 0;
    if (pool && nacre_pool_usage(pool, &total, &free) == 0) {
        counters->set(POOL_BYTES, total);
        counters->set(POOL_FREE, free);
    }
}

// Applied is what is committed.
objectstore_perf_stat_t Store::get_cur_stats() {
    refresh_perf_counters();
    objectstore_perf_stat_t found;
    found.os_commit_latency_ns = commit_latency.current_avg();
    found.os_apply_latency_ns = found.os_commit_latency_ns;
    return found;
}

}  // namespace nacre_ceph
