/* Nacre: durable objects in non-volatile memory. docs/objects.md has the contract.
 *
 * Functions that return int give 0, or a negative errno: nacre_error_message() then says more, in the same thread.
 * A pool may be used by many threads; a transaction or list by one at a time. After fork() the child opens the pool
 * again, and closes its parent's handle. Made by cbindgen from crates/nacre-capi; do not edit. */

#ifndef NACRE_H
#define NACRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Open to change nothing.
#define NACRE_READ_ONLY 1

// Names, or names and values, in order.
typedef struct nacre_list nacre_list;

// An opened pool.
typedef struct nacre_pool nacre_pool;

// Operations that shall happen together.
typedef struct nacre_tx nacre_tx;

// Bytes somewhere in memory.
typedef struct nacre_slice {
  // The first one; anything if there are none.
  const void *data;
  // How many.
  size_t len;
} nacre_slice;

// What an object is.
typedef struct nacre_stat {
  // Bytes.
  uint64_t size;
  // Attributes.
  uint64_t attributes;
  // 1 if its omap holds anything, else 0.
  uint32_t has_omap;
  // 0.
  uint32_t reserved;
} nacre_stat;

// Bytes of an object that were written.
typedef struct nacre_extent {
  // The first one.
  uint64_t offset;
  // How many.
  uint64_t len;
} nacre_extent;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, as `major * 1000000 + minor * 1000 + patch`.
uint32_t nacre_version(void);

// What the last call of this thread that failed had to say, or an empty string; it stays until the
// next one fails.
const char *nacre_error_message(void);

// Makes a pool of `size` bytes, at least 19 MiB, in a file that does not exist or is empty, and
// opens it.
//
// # Safety
// `path` is a string that ends with a zero; `pool` may be written.
int nacre_pool_create(const char *path, uint64_t size, struct nacre_pool **pool);

// Opens a pool by the path of any of its devices. `flags` is 0 or NACRE_READ_ONLY.
//
// # Safety
// `path` is a string that ends with a zero; `pool` may be written.
int nacre_pool_open(const char *path, uint32_t flags, struct nacre_pool **pool);

// Leaves a pool. NULL is ignored. The handle is gone, whatever the result.
//
// # Safety
// `pool` is NULL or a pool that was not closed, and no thread uses it any more.
int nacre_pool_close(struct nacre_pool *pool);

// How full the pool is, in bytes.
//
// # Safety
// `pool` is an open pool; `total` and `free_bytes` may be written or are NULL.
int nacre_pool_usage(const struct nacre_pool *pool, uint64_t *total, uint64_t *free_bytes);

// Looks at everything in a pool that nobody uses, else -EBUSY: `problems` is a list whose keys are
// a line for each, empty if all is well.
//
// # Safety
// `path` is a string that ends with a zero; `problems` may be written.
int nacre_pool_check(const char *path, struct nacre_list **problems);

// 0 if the collection exists, -ENOENT if not.
//
// # Safety
// `pool` is an open pool; the slice is readable.
int nacre_collection_exists(const struct nacre_pool *pool, struct nacre_slice collection);

// Names of collections from `from` on, at most `limit`. They are the keys of the list.
//
// # Safety
// `pool` is an open pool; the slice is readable; `list` may be written.
int nacre_list_collections(const struct nacre_pool *pool,
                           struct nacre_slice from,
                           size_t limit,
                           struct nacre_list **list);

// Names of objects of a collection from `from` on, at most `limit`. They are the keys of the list.
//
// # Safety
// `pool` is an open pool; the slices are readable; `list` may be written.
int nacre_list_objects(const struct nacre_pool *pool,
                       struct nacre_slice collection,
                       struct nacre_slice from,
                       size_t limit,
                       struct nacre_list **list);

// 0 if the object exists, -ENOENT if not.
//
// # Safety
// `pool` is an open pool; the slices are readable.
int nacre_object_exists(const struct nacre_pool *pool,
                        struct nacre_slice collection,
                        struct nacre_slice object);

// What an object is; -ENOENT if there is none.
//
// # Safety
// `pool` is an open pool; the slices are readable; `found` is NULL or may be written.
int nacre_object_stat(const struct nacre_pool *pool,
                      struct nacre_slice collection,
                      struct nacre_slice object,
                      struct nacre_stat *found);

// Reads up to `capacity` bytes of an object from `offset` on; `len` says how many there were.
//
// # Safety
// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
// and `len`.
int nacre_read(const struct nacre_pool *pool,
               struct nacre_slice collection,
               struct nacre_slice object,
               uint64_t offset,
               void *buffer,
               size_t capacity,
               size_t *len);

// Where bytes of an object lie that were written, within `len` bytes at `offset`, in order; all
// else reads as zeros. `count` says how many extents there were, at most `capacity`: if it is
// that, go on behind the last one.
//
// # Safety
// `pool` is an open pool; the slices are readable; `capacity` extents at `extents` may be written,
// and `count`.
int nacre_extents(const struct nacre_pool *pool,
                  struct nacre_slice collection,
                  struct nacre_slice object,
                  uint64_t offset,
                  uint64_t len,
                  struct nacre_extent *extents,
                  size_t capacity,
                  size_t *count);

// The value of an attribute; -ENODATA if there is none. `len` is its length even if the buffer is
// too short (-ERANGE).
//
// # Safety
// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
// and `len`.
int nacre_get_attribute(const struct nacre_pool *pool,
                        struct nacre_slice collection,
                        struct nacre_slice object,
                        struct nacre_slice name,
                        void *buffer,
                        size_t capacity,
                        size_t *len);

// All attributes of an object: names, which are the keys of the list, and values.
//
// # Safety
// `pool` is an open pool; the slices are readable; `list` may be written.
int nacre_list_attributes(const struct nacre_pool *pool,
                          struct nacre_slice collection,
                          struct nacre_slice object,
                          struct nacre_list **list);

// The value of an omap key; -ENODATA if there is none. `len` is its length even if the buffer is
// too short (-ERANGE).
//
// # Safety
// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
// and `len`.
int nacre_get_omap(const struct nacre_pool *pool,
                   struct nacre_slice collection,
                   struct nacre_slice object,
                   struct nacre_slice key,
                   void *buffer,
                   size_t capacity,
                   size_t *len);

// The omap's header, empty if there is none. `len` is its length even if the buffer is too short
// (-ERANGE).
//
// # Safety
// `pool` is an open pool; the slices are readable; `capacity` bytes at `buffer` may be written,
// and `len`.
int nacre_get_omap_header(const struct nacre_pool *pool,
                          struct nacre_slice collection,
                          struct nacre_slice object,
                          void *buffer,
                          size_t capacity,
                          size_t *len);

// Keys and values of an omap from `from` on, at most `limit`.
//
// # Safety
// `pool` is an open pool; the slices are readable; `list` may be written.
int nacre_list_omap(const struct nacre_pool *pool,
                    struct nacre_slice collection,
                    struct nacre_slice object,
                    struct nacre_slice from,
                    size_t limit,
                    struct nacre_list **list);

// Keys and values of an omap that are before `end`, all if that is empty, from the last one on
// backwards, at most `limit`. To go on, ask with the last key of the list.
//
// # Safety
// `pool` is an open pool; the slices are readable; `list` may be written.
int nacre_list_omap_back(const struct nacre_pool *pool,
                         struct nacre_slice collection,
                         struct nacre_slice object,
                         struct nacre_slice end,
                         size_t limit,
                         struct nacre_list **list);

// How many entries a list has.
//
// # Safety
// `list` is NULL or a list that was not dropped.
size_t nacre_list_len(const struct nacre_list *list);

// A name or key of a list, no bytes behind its end; it stays until the list is dropped.
//
// # Safety
// `list` is NULL or a list that was not dropped.
struct nacre_slice nacre_list_key(const struct nacre_list *list, size_t index);

// A value of a list, no bytes behind its end; it stays until the list is dropped.
//
// # Safety
// `list` is NULL or a list that was not dropped.
struct nacre_slice nacre_list_value(const struct nacre_list *list, size_t index);

// Drops a list. NULL is ignored.
//
// # Safety
// `list` is NULL or a list that was not dropped.
void nacre_list_drop(struct nacre_list *list);

// A transaction without operations. Give it to nacre_commit() or nacre_tx_drop().
struct nacre_tx *nacre_tx_begin(void);

// As nacre_tx_begin(), of a transaction that copies nothing: names, keys and values stay as they
// are until the commit returns.
struct nacre_tx *nacre_tx_begin_lent(void);

// Forgets a transaction. NULL is ignored.
//
// # Safety
// `tx` is NULL or a transaction that was neither committed nor dropped.
void nacre_tx_drop(struct nacre_tx *tx);

// Makes all operations durable, or none. The transaction is gone, whatever the result.
//
// # Safety
// `pool` is an open pool; `tx` is NULL or a transaction that was neither committed nor dropped;
// what was lent to it is still there.
int nacre_commit(const struct nacre_pool *pool, struct nacre_tx *tx);

// The operation that was added last does nothing if its object does not exist; without this it
// makes the transaction fail, or the object.
//
// # Safety
// `tx` is a transaction that no other thread uses.
int nacre_tx_if_exists(struct nacre_tx *tx);

// Creates a collection that does not exist.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_create_collection(struct nacre_tx *tx, struct nacre_slice collection);

// Removes an empty collection.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove_collection(struct nacre_tx *tx, struct nacre_slice collection);

// Creates an object that does not exist.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_create(struct nacre_tx *tx, struct nacre_slice collection, struct nacre_slice object);

// Creates an object if it does not exist.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_touch(struct nacre_tx *tx, struct nacre_slice collection, struct nacre_slice object);

// Writes a copy of bytes at `offset`; creates the object if it does not exist.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_write(struct nacre_tx *tx,
                   struct nacre_slice collection,
                   struct nacre_slice object,
                   uint64_t offset,
                   struct nacre_slice data);

// As nacre_tx_write(), without a copy: the bytes stay as they are until the commit returns.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable, and `data` until the
// commit returns.
int nacre_tx_write_lent(struct nacre_tx *tx,
                        struct nacre_slice collection,
                        struct nacre_slice object,
                        uint64_t offset,
                        struct nacre_slice data);

// As if `len` zeros were written at `offset`, without room for them.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_zero(struct nacre_tx *tx,
                  struct nacre_slice collection,
                  struct nacre_slice object,
                  uint64_t offset,
                  uint64_t len);

// Sets the size; new bytes are zeros.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_truncate(struct nacre_tx *tx,
                      struct nacre_slice collection,
                      struct nacre_slice object,
                      uint64_t size);

// Removes an object.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove(struct nacre_tx *tx, struct nacre_slice collection, struct nacre_slice object);

// Sets an attribute.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_set_attribute(struct nacre_tx *tx,
                           struct nacre_slice collection,
                           struct nacre_slice object,
                           struct nacre_slice name,
                           struct nacre_slice value);

// Removes an attribute if it is there.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove_attribute(struct nacre_tx *tx,
                              struct nacre_slice collection,
                              struct nacre_slice object,
                              struct nacre_slice name);

// Removes all attributes.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove_attributes(struct nacre_tx *tx,
                               struct nacre_slice collection,
                               struct nacre_slice object);

// Makes `to`, whatever it was, what `object` is: bytes, attributes, omap and header.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_clone(struct nacre_tx *tx,
                   struct nacre_slice collection,
                   struct nacre_slice object,
                   struct nacre_slice to);

// Copies `len` bytes at `offset` of `object`, as far as it has them, to `to_offset` of `to`, which
// is created if it does not exist.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_clone_range(struct nacre_tx *tx,
                         struct nacre_slice collection,
                         struct nacre_slice object,
                         struct nacre_slice to,
                         uint64_t offset,
                         uint64_t len,
                         uint64_t to_offset);

// Sets a key of the omap.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_set_omap(struct nacre_tx *tx,
                      struct nacre_slice collection,
                      struct nacre_slice object,
                      struct nacre_slice key,
                      struct nacre_slice value);

// Removes a key of the omap if it is there.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove_omap(struct nacre_tx *tx,
                         struct nacre_slice collection,
                         struct nacre_slice object,
                         struct nacre_slice key);

// Removes the keys of the omap that are not before `from`, but before `to`.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_remove_omap_range(struct nacre_tx *tx,
                               struct nacre_slice collection,
                               struct nacre_slice object,
                               struct nacre_slice from,
                               struct nacre_slice to);

// Removes all keys of the omap, and its header.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_clear_omap(struct nacre_tx *tx,
                        struct nacre_slice collection,
                        struct nacre_slice object);

// Sets the omap's header.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_set_omap_header(struct nacre_tx *tx,
                             struct nacre_slice collection,
                             struct nacre_slice object,
                             struct nacre_slice header);

// Makes the commit fail with -ECANCELED unless an attribute has this value then, or is not there
// if `value` is NULL. An object that does not exist has no attributes.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable, and `value` if it is
// not NULL.
int nacre_tx_expect_attribute(struct nacre_tx *tx,
                              struct nacre_slice collection,
                              struct nacre_slice object,
                              struct nacre_slice name,
                              const struct nacre_slice *value);

// Makes the commit fail with -ECANCELED unless a key of the omap has this value then, or is not
// there if `value` is NULL. An object that does not exist has no keys.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable, and `value` if it is
// not NULL.
int nacre_tx_expect_omap(struct nacre_tx *tx,
                         struct nacre_slice collection,
                         struct nacre_slice object,
                         struct nacre_slice key,
                         const struct nacre_slice *value);

// Moves an object to another name, in this or another collection, where no object may be.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_rename(struct nacre_tx *tx,
                    struct nacre_slice collection,
                    struct nacre_slice object,
                    struct nacre_slice to_collection,
                    struct nacre_slice to);

// Moves to another collection, which exists, the objects whose names have, `offset` bytes from
// their start, these `bits` bits, at most 64: the upper bit of a byte comes first, `value` is what
// they are as a number.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_split(struct nacre_tx *tx,
                   struct nacre_slice collection,
                   struct nacre_slice to,
                   size_t offset,
                   uint32_t bits,
                   uint64_t value);

// Moves all objects of a collection to another one, which exists, and removes the collection.
//
// # Safety
// `tx` is a transaction that no other thread uses; the slices are readable.
int nacre_tx_merge(struct nacre_tx *tx, struct nacre_slice collection, struct nacre_slice into);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NACRE_H */

#ifndef NACRE_SLICES
#define NACRE_SLICES

/* The bytes of a string without its final zero. */
static inline struct nacre_slice nacre_str(const char *text) {
    struct nacre_slice slice = {text, strlen(text)};
    return slice;
}

/* Any bytes. */
static inline struct nacre_slice nacre_bytes(const void *data, size_t len) {
    struct nacre_slice slice = {data, len};
    return slice;
}

#endif /* NACRE_SLICES */
