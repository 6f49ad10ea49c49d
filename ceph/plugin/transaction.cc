// Transactions of Ceph as transactions of the library: all that is queued in one call is one of
// them, committed by the thread that brings it.
#include <deque>
#include <forward_list>

#include "common/Formatter.h"
#include "common/errno.h"
#include "keys.h"
#include "log.h"
#include "store.h"

using ceph::bufferlist;
using ceph::bufferptr;
using Transaction = ObjectStore::Transaction;

namespace nacre_ceph {

// What the memory of the store learns from a commit, and what the counters do.
struct Changes {
    // Bits of a collection that is new or changes; none: it is gone.
    std::vector<std::pair<coll_t, std::optional<int>>> collections;
    uint64_t operations = 0, bytes = 0, keys_set = 0, keys_removed = 0, attributes = 0;
};

namespace {

// Takes strings from bytes as Ceph writes them: a length, then that many bytes.
class Fields {
public:
    explicit Fields(nacre_slice bytes) : at(static_cast<const char*>(bytes.data)) {}

    uint32_t number() {
        ceph_le32 number;
        memcpy(&number, at, sizeof number);
        at += sizeof number;
        return number;
    }

    nacre_slice string() {
        const uint32_t len = number();
        at += len;
        return nacre_bytes(at - len, len);
    }

private:
    const char* at;
};

// Adds the operations of Ceph's transactions to one of the library's. All names and bytes are lent
// to that: they stay where they are until this ends.
class Translator {
public:
    Translator(nacre_tx* tx, Changes* changes) : tx(tx), changes(changes) {}

    void add(Transaction& transaction) {
        Transaction::iterator at = transaction.begin();
        i = &at;
        names = &kept_names.emplace_front(at.colls.size());
        keys = &kept_names.emplace_front(at.objects.size());
        while (at.have_op()) {
            op = at.decode_op();
            changes->operations++;
            collection_operation();
        }
    }

private:
    void collection_operation();
    void object_operation();
    void attribute_operation();
    void omap_operation();
    void write();
    void set_attributes();
    void remove_attribute();
    void set_keys();
    void remove_keys();
    void rename();
    void split();
    void create_collection();
    void remove_collection();
    void merge();
    void set_bits(const coll_t& cid, std::optional<int> bits);
    [[noreturn]] void unknown();

    // The operation that was added last does nothing to an object that does not exist.
    void if_exists() { nacre_tx_if_exists(tx); }
    nacre_slice collection() { return collection(op->cid); }
    nacre_slice object() { return object(op->oid); }
    nacre_slice collection(uint32_t number) {
        std::string& name = (*names)[number];
        if (name.empty()) name = i->get_cid(number).to_str();
        return slice(name);
    }
    nacre_slice object(uint32_t number) {
        std::string& key = (*keys)[number];
        if (key.empty()) key = key_of(i->get_oid(number));
        return slice(key);
    }
    nacre_slice lent(bufferlist&& bytes) {
        bufferlist& kept = kept_bytes.emplace_back(std::move(bytes));
        return nacre_bytes(kept.c_str(), kept.length());
    }
    nacre_slice bytes() {
        bufferlist found;
        i->decode_bl(found);
        return lent(std::move(found));
    }
    nacre_slice string() {
        const std::string& kept = kept_strings.emplace_front(i->decode_string());
        return slice(kept);
    }
    nacre_slice omap_key(nacre_slice name) {
        return is_zeros(view(name)) ? slice(kept_strings.emplace_front(omap_key_of(view(name))))
                                    : name;
    }
    // Names and values, after their number.
    Fields entries() {
        bufferlist found;
        i->decode_attrset_bl(&found);
        return Fields(lent(std::move(found)));
    }
    Fields only_names() {
        bufferlist found;
        i->decode_keyset_bl(&found);
        return Fields(lent(std::move(found)));
    }

    nacre_tx* tx;
    Changes* changes;
    Transaction::iterator* i = nullptr;
    Transaction::Op* op = nullptr;
    std::vector<std::string>*names = nullptr, *keys = nullptr;
    std::forward_list<std::vector<std::string>> kept_names;
    std::forward_list<std::string> kept_strings;
    std::deque<bufferlist> kept_bytes;
};

void Translator::collection_operation() {
    switch (op->op) {
        case Transaction::OP_NOP:
        case Transaction::OP_TRIMCACHE:
        case Transaction::OP_SETALLOCHINT:
            return;
        case Transaction::OP_COLL_HINT:
            bytes();
            return;
        case Transaction::OP_MKCOLL:
            return create_collection();
        case Transaction::OP_RMCOLL:
            return remove_collection();
        case Transaction::OP_COLL_SET_BITS:
            return set_bits(i->get_cid(op->cid), op->split_bits);
        case Transaction::OP_SPLIT_COLLECTION2:
            return split();
        case Transaction::OP_MERGE_COLLECTION:
            return merge();
        default:
            return object_operation();
    }
}

void Translator::object_operation() {
    switch (op->op) {
        case Transaction::OP_CREATE:
        case Transaction::OP_TOUCH:
            nacre_tx_touch(tx, collection(), object());
            return;
        case Transaction::OP_WRITE:
            return write();
        case Transaction::OP_ZERO:
            nacre_tx_zero(tx, collection(), object(), op->off, op->len);
            return;
        case Transaction::OP_TRUNCATE:
            nacre_tx_truncate(tx, collection(), object(), op->off);
            return if_exists();
        case Transaction::OP_REMOVE:
        case Transaction::OP_COLL_REMOVE:
            nacre_tx_remove(tx, collection(), object());
            return if_exists();
        case Transaction::OP_CLONE:
            nacre_tx_clone(tx, collection(), object(), object(op->dest_oid));
            return;
        case Transaction::OP_CLONERANGE:
        case Transaction::OP_CLONERANGE2:
            nacre_tx_clone_range(tx, collection(), object(), object(op->dest_oid), op->off, op->len,
                                 op->op == Transaction::OP_CLONERANGE ? op->off : op->dest_off);
            return;
        case Transaction::OP_COLL_MOVE_RENAME:
        case Transaction::OP_TRY_RENAME:
            return rename();
        default:
            return attribute_operation();
    }
}

void Translator::attribute_operation() {
    switch (op->op) {
        case Transaction::OP_SETATTR: {
            nacre_slice name = string();
            nacre_tx_set_attribute(tx, collection(), object(), name, bytes());
            changes->attributes++;
            return;
        }
        case Transaction::OP_SETATTRS:
            return set_attributes();
        case Transaction::OP_RMATTR:
            return remove_attribute();
        case Transaction::OP_RMATTRS:
            nacre_tx_remove_attributes(tx, collection(), object());
            return if_exists();
        default:
            return omap_operation();
    }
}

void Translator::omap_operation() {
    switch (op->op) {
        case Transaction::OP_OMAP_CLEAR:
            nacre_tx_clear_omap(tx, collection(), object());
            return if_exists();
        case Transaction::OP_OMAP_SETKEYS:
            return set_keys();
        case Transaction::OP_OMAP_RMKEYS:
            return remove_keys();
        case Transaction::OP_OMAP_RMKEYRANGE: {
            nacre_slice first = omap_key(string()), last = omap_key(string());
            nacre_tx_remove_omap_range(tx, collection(), object(), first, last);
            return;
        }
        case Transaction::OP_OMAP_SETHEADER:
            nacre_tx_set_omap_header(tx, collection(), object(), bytes());
            return;
        default:
            unknown();
    }
}

void Translator::write() {
    nacre_slice data = bytes();
    changes->bytes += data.len;
    nacre_tx_write(tx, collection(), object(), op->off, data);
}

void Translator::set_attributes() {
    Fields fields = entries();
    for (uint32_t left = fields.number(); left > 0; left--) {
        nacre_slice name = fields.string();
        nacre_tx_set_attribute(tx, collection(), object(), name, fields.string());
        changes->attributes++;
    }
}

// Ceph takes names of any length from clients, also those that no attribute and no key has.
void Translator::remove_attribute() {
    nacre_slice name = string();
    if (is_attribute_name({static_cast<const char*>(name.data), name.len}))
        nacre_tx_remove_attribute(tx, collection(), object(), name);
}

void Translator::set_keys() {
    Fields fields = entries();
    for (uint32_t left = fields.number(); left > 0; left--) {
        nacre_slice key = omap_key(fields.string());
        nacre_tx_set_omap(tx, collection(), object(), key, fields.string());
        changes->keys_set++;
    }
}

void Translator::remove_keys() {
    Fields fields = only_names();
    for (uint32_t left = fields.number(); left > 0; left--) {
        nacre_slice key = omap_key(fields.string());
        if (key.len <= KEY_MAX) nacre_tx_remove_omap(tx, collection(), object(), key);
        changes->keys_removed++;
    }
}

void Translator::rename() {
    bool within = op->op == Transaction::OP_TRY_RENAME;
    nacre_tx_rename(tx, collection(), object(), collection(within ? op->cid : op->dest_cid),
                    object(op->dest_oid));
    if_exists();
}

// The bits of the source become more; those of the target were told when it was created.
void Translator::split() {
    const uint32_t bits = op->split_bits;
    uint32_t reversed = 0;
    for (uint32_t bit = 0; bit < bits; bit++)
        reversed |= (op->split_rem >> bit & 1u) << (bits - 1 - bit);
    nacre_tx_split(tx, collection(), collection(op->dest_cid), HASH_AT, bits, reversed);
    set_bits(i->get_cid(op->cid), static_cast<int>(bits));
}

void Translator::merge() {
    nacre_tx_merge(tx, collection(), collection(op->dest_cid));
    set_bits(i->get_cid(op->cid), std::nullopt);
    set_bits(i->get_cid(op->dest_cid), static_cast<int>(op->split_bits));
}

void Translator::create_collection() {
    nacre_tx_create_collection(tx, collection());
    set_bits(i->get_cid(op->cid), static_cast<int>(op->split_bits));
}

void Translator::remove_collection() {
    nacre_tx_remove_collection(tx, collection());
    set_bits(i->get_cid(op->cid), std::nullopt);
}

void Translator::set_bits(const coll_t& cid, std::optional<int> bits) {
    changes->collections.emplace_back(cid, bits);
    const nacre_slice name = slice(kept_strings.emplace_front(cid.to_str()));
    const nacre_slice own = slice(OWN_COLLECTION), object = slice(OWN_OBJECT);
    if (bits) {
        const std::string& value = kept_strings.emplace_front(std::to_string(*bits));
        nacre_tx_set_omap(tx, own, object, name, slice(value));
    } else {
        nacre_tx_remove_omap(tx, own, object, name);
    }
}

void Translator::unknown() {
    ceph_abort_msg("an operation of a transaction that this store does not know");
}

}  // namespace

int Store::queue_transactions(CollectionHandle& handle, std::vector<Transaction>& transactions,
                              TrackedOpRef, ThreadPool::TPHandle* thread) {
    auto began = ceph::mono_clock::now();
    auto* collection = static_cast<Collection*>(handle.get());
    if (thread) thread->reset_tp_timeout();
    Changes changes;
    std::lock_guard guard(collection->order);
    if (int result = apply(transactions, &changes)) give_up(result, transactions);
    finish(changes);
    counters->tinc(COMMIT_LATENCY, ceph::mono_clock::now() - began);
    call_back(collection, transactions);
    return 0;
}

int Store::apply(std::vector<Transaction>& transactions, Changes* changes) {
    nacre_tx* tx = nacre_tx_begin_lent();
    Translator translator(tx, changes);
    for (Transaction& transaction : transactions) translator.add(transaction);
    return nacre_commit(pool, tx);
}

void Store::finish(Changes& changes) {
    counters->inc(TRANSACTIONS);
    counters->inc(OPERATIONS, changes.operations);
    counters->inc(BYTES_WRITTEN, changes.bytes);
    counters->inc(OMAP_KEYS_SET, changes.keys_set);
    counters->inc(OMAP_KEYS_REMOVED, changes.keys_removed);
    counters->inc(ATTRIBUTES_SET, changes.attributes);
    if (changes.collections.empty()) return;
    std::lock_guard guard(collections_lock);
    for (const auto& [cid, bits] : changes.collections) {
        if (!bits) {
            collections.erase(cid);
            continue;
        }
        auto& known = collections[cid];
        if (auto made = new_collections.extract(cid); !known && made) known = made.mapped();
        if (!known) known = ceph::make_ref<Collection>(cct, cid);
        known->bits = *bits;
    }
}

// Everything is readable and durable; whoever waits for either hears of it in this order.
void Store::call_back(Collection* collection, std::vector<Transaction>& transactions) {
    std::list<Context*> readable, durable, readable_now;
    Transaction::collect_contexts(transactions, &readable, &durable, &readable_now);
    for (Context* context : readable_now) context->complete(0);
    readable.splice(readable.end(), durable);
    if (readable.empty()) return;
    if (ContextQueue* queue = collection->commit_queue) {
        queue->queue(readable);
    } else {
        finisher.queue(readable);
    }
}

// As with other stores: an OSD whose store fails ends, before it says that anything was done.
void Store::give_up(int result, std::vector<Transaction>& transactions) {
    derr << "a transaction failed: " << nacre_error_message() << " (" << cpp_strerror(result) << ")"
         << dendl;
    ceph::JSONFormatter formatter(true);
    for (Transaction& transaction : transactions) {
        formatter.open_object_section("transaction");
        transaction.dump(&formatter);
        formatter.close_section();
    }
    std::ostringstream text;
    formatter.flush(text);
    derr << text.str() << dendl;
    if (cct->_conf.get_val<bool>("objectstore_debug_throw_on_failed_txc")) throw result;
    ceph_abort_msg(result == -ENOSPC ? "the pool is full" : "unexpected error of the pool");
}

}  // namespace nacre_ceph
