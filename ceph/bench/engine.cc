// A store alone, without network or OSD, under transactions like those that an OSD queues for a
// write of an RBD image: bytes, an attribute of 250 bytes, two omap entries of 180 and 186 bytes in
// the placement group's object, and the removal of an old one.
//
// Runs inside of the unmodified ceph-osd, whose stores it measures: preloaded, it takes main's place.
//
//   LD_PRELOAD=libengine.so NACRE_BENCH=1 ceph-osd store=nacre bytes=4096 depth=32 seconds=10 ...
#include <dlfcn.h>
#include <sys/resource.h>

#include <condition_variable>
#include <iostream>
#include <random>

#include "common/ceph_argparse.h"
#include "global/global_context.h"
#include "global/global_init.h"
#include "os/ObjectStore.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t OBJECT = 4 << 20;
constexpr int COLLECTIONS = 8;
// Entries of the log that stay.
constexpr uint64_t LOG = 3000;

struct Settings {
    std::string store = "nacre", folder = "/dev/shm/engine";
    uint64_t bytes = 4096, depth = 32, seconds = 10, megabytes = 512;
};

// At most so many transactions are under way.
class Slots {
public:
    explicit Slots(uint64_t free) : free(free) {}
    void take() {
        std::unique_lock guard(lock);
        freed.wait(guard, [this] { return free > 0; });
        free--;
    }
    void give() {
        std::lock_guard guard(lock);
        free++;
        freed.notify_one();
    }

private:
    std::mutex lock;
    std::condition_variable freed;
    uint64_t free;
};

// Notes how long a transaction took.
class Done : public Context {
public:
    Done(Slots* slots, std::mutex* lock, std::vector<double>* latencies)
        : slots(slots), lock(lock), latencies(latencies) {}
    void finish(int) override {
        std::chrono::duration<double, std::micro> took = Clock::now() - began;
        {
            std::lock_guard guard(*lock);
            latencies->push_back(took.count());
        }
        slots->give();
    }

private:
    Slots* slots;
    std::mutex* lock;
    std::vector<double>* latencies;
    Clock::time_point began = Clock::now();
};

struct Group {
    coll_t cid;
    ObjectStore::CollectionHandle handle;
    ghobject_t meta;
    std::vector<ghobject_t> objects;
};

double cpu_seconds() {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class Bench {
public:
    Bench(ObjectStore* store, const Settings& settings)
        : store(store), settings(settings), noise(OBJECT, '\0') {
        for (char& byte : noise) byte = static_cast<char>(random());
    }

    void fill() {
        for (int number = 0; number < COLLECTIONS; number++) make_group(number);
        const uint64_t objects = settings.megabytes * (1 << 20) / OBJECT;
        for (uint64_t number = 0; number < objects; number++) {
            Group& group = groups[number % COLLECTIONS];
            auto hash = static_cast<uint32_t>(number * 2654435761u) << 5 | number % COLLECTIONS;
            object_t name("rbd_data.101." + std::to_string(number));
            group.objects.emplace_back(hobject_t(name, "", CEPH_NOSNAP, hash, 1, ""));
            ObjectStore::Transaction t;
            write(&t, group, group.objects.back(), 0, OBJECT);
            queue(group, std::move(t));
        }
        wait();
        latencies.clear();
    }

    void run() {
        const double before = cpu_seconds();
        const auto began = Clock::now(), end = began + std::chrono::seconds(settings.seconds);
        for (uint64_t version = 0; Clock::now() < end; version++) change(version);
        wait();
        const double took = std::chrono::duration<double>(Clock::now() - began).count();
        const double count = static_cast<double>(latencies.size());
        std::sort(latencies.begin(), latencies.end());
        printf("engine store %s bytes %lu depth %lu IOPS %.0f p50_us %.1f p99_us %.1f cpu_us %.1f\n",
               settings.store.c_str(), settings.bytes, settings.depth, count / took,
               latencies[latencies.size() / 2], latencies[latencies.size() * 99 / 100],
               (cpu_seconds() - before) * 1e6 / count);
        fflush(stdout);
    }

    void leave() {
        for (Group& group : groups) group.handle->flush();
        groups.clear();
    }

private:
    void make_group(int number) {
        spg_t pg(pg_t(number, 1), shard_id_t::NO_SHARD);
        Group group{coll_t(pg), store->create_new_collection(coll_t(pg)), pg.make_pgmeta_oid(), {}};
        ObjectStore::Transaction t;
        t.create_collection(group.cid, 5);
        t.touch(group.cid, group.meta);
        queue(group, std::move(t));
        groups.push_back(group);
    }

    ceph::bufferlist some(uint64_t bytes) {
        ceph::bufferlist made;
        made.append(noise.data() + random() % (OBJECT - bytes + 1), bytes);
        return made;
    }

    void write(ObjectStore::Transaction* t, Group& group, const ghobject_t& object, uint64_t at,
               uint64_t bytes) {
        t->write(group.cid, object, at, bytes, some(bytes));
        ceph::bufferlist attribute = some(250);
        t->setattr(group.cid, object, "_", attribute);
    }

    void change(uint64_t version) {
        Group& group = groups[random() % COLLECTIONS];
        const ghobject_t& object = group.objects[random() % group.objects.size()];
        ObjectStore::Transaction t;
        write(&t, group, object, random() % (OBJECT / settings.bytes) * settings.bytes,
              settings.bytes);
        auto entry = [](uint64_t number) {
            char key[64];
            snprintf(key, sizeof key, "%010d.%020lu", 1, number);
            return std::string(key);
        };
        std::map<std::string, ceph::bufferlist> entries;
        entries[entry(version)] = some(180);
        entries["_fastinfo"] = some(186);
        t.omap_setkeys(group.cid, group.meta, entries);
        if (version > LOG) {
            std::set<std::string> old{entry(version - LOG)};
            t.omap_rmkeys(group.cid, group.meta, old);
        }
        queue(group, std::move(t));
    }

    void queue(Group& group, ObjectStore::Transaction&& t) {
        slots.take();
        t.register_on_commit(new Done(&slots, &lock, &latencies));
        store->queue_transaction(group.handle, std::move(t));
    }

    // All that is under way is done.
    void wait() {
        for (uint64_t slot = 0; slot < settings.depth; slot++) slots.take();
        for (uint64_t slot = 0; slot < settings.depth; slot++) slots.give();
    }

    ObjectStore* store;
    const Settings settings;
    std::string noise;
    std::mt19937_64 random{1};
    Slots slots{settings.depth};
    std::mutex lock;
    std::vector<double> latencies;
    std::vector<Group> groups;
};

// Takes `name=value` for itself, leaves the rest to Ceph.
Settings settings_of(int count, char** arguments, std::vector<const char*>* rest) {
    Settings settings;
    std::map<std::string, uint64_t*> numbers{{"bytes", &settings.bytes},
                                             {"depth", &settings.depth},
                                             {"seconds", &settings.seconds},
                                             {"megabytes", &settings.megabytes}};
    for (int at = 1; at < count; at++) {
        std::string argument = arguments[at];
        auto equals = argument.find('=');
        std::string name = argument.substr(0, equals);
        if (argument[0] == '-' || equals == std::string::npos) {
            rest->push_back(arguments[at]);
        } else if (auto number = numbers.find(name); number != numbers.end()) {
            *number->second = strtoull(argument.c_str() + equals + 1, nullptr, 10);
        } else {
            (name == "store" ? settings.store : settings.folder) = argument.substr(equals + 1);
        }
    }
    return settings;
}

int bench(int count, char** arguments, char**) {
    std::vector<const char*> rest;
    Settings settings = settings_of(count, arguments, &rest);
    auto context = global_init(nullptr, rest, CEPH_ENTITY_TYPE_OSD, CODE_ENVIRONMENT_UTILITY,
                               CINIT_FLAG_NO_DEFAULT_CONFIG_FILE);
    common_init_finish(g_ceph_context);
    auto store = ObjectStore::create(g_ceph_context, settings.store, settings.folder, "", 0);
    if (!store || store->mkfs() < 0 || store->mount() < 0) {
        std::cerr << "cannot make a store of type " << settings.store << std::endl;
        return 1;
    }
    {
        Bench bench(store.get(), settings);
        bench.fill();
        bench.run();
        bench.leave();
    }
    store->umount();
    _exit(0);
}

using Main = int (*)(int, char**, char**);

}  // namespace

extern "C" int __libc_start_main(Main main, int count, char** arguments, void (*init)(),
                                 void (*fini)(), void (*loaded)(), void* stack) {
    using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
    auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
    const bool ours = secure_getenv("NACRE_BENCH");
    return start(ours ? bench : main, count, arguments, init, fini, loaded, stack);
}
