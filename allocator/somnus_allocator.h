/* The sleepable allocator for other languages: memory of a GPU or of this host, in regions with tags, whose
 * physical memory can be released and mapped again at the same addresses. allocator/README.md explains the
 * allocator; sleepable_allocator.h specifies each call.
 *
 * Ownership: an allocator owns its regions; somnus_destroy frees them. Strings that are passed in are copied.
 * Thread safety: calls may come from any thread, but nothing may use the memory of a tag while the tag
 * goes to sleep or wakes up. Errors: a call returns SOMNUS_OK or an error's code, and somnus_last_error
 * explains the last error of the calling thread. */
#ifndef ALLOCATOR_SOMNUS_ALLOCATOR_H_
#define ALLOCATOR_SOMNUS_ALLOCATOR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of absl::StatusCode. Codes that are not listed are possible. */
enum {
  SOMNUS_OK = 0,
  SOMNUS_INVALID_ARGUMENT = 3,
  SOMNUS_NOT_FOUND = 5,
  SOMNUS_RESOURCE_EXHAUSTED = 8, /* of memory, or of the disk */
  SOMNUS_FAILED_PRECONDITION = 9,
  SOMNUS_UNIMPLEMENTED = 12, /* this build has no such device, or does not compress */
  SOMNUS_INTERNAL = 13,
  SOMNUS_UNAVAILABLE = 14, /* there is no such device */
  SOMNUS_DATA_LOSS = 15    /* a backup in a file, or a compressed backup, is damaged */
};

enum { SOMNUS_DEVICE_HOST = 0, SOMNUS_DEVICE_CUDA = 1, SOMNUS_DEVICE_HIP = 2 };
enum {
  SOMNUS_BACKUP_RETAIN = 0,
  SOMNUS_BACKUP_RELEASE = 1,
  SOMNUS_BACKUP_FILE = 2,
  SOMNUS_BACKUP_COMPRESS = 3
};
enum { SOMNUS_DISCARD = 0, SOMNUS_BACKUP = 1 }; /* whether a sleep discards or saves contents */

/* All zero is the host's memory with retained backups. */
typedef struct {
  int32_t device;
  int32_t device_index; /* of a GPU */
  int32_t backup;
  int32_t num_threads;        /* of the host's memory, for page faults and copies; 0: the CPUs, at most 4 */
  const char* spill_dir;      /* of SOMNUS_BACKUP_FILE */
  int64_t chunk_bytes;        /* physical memory is created in chunks of this size; 0: the device's default */
  int64_t memory_limit_bytes; /* of the host's memory; 0: none */
} somnus_options;

typedef struct {
  int64_t resident;    /* physical bytes held, without backups */
  int64_t sleeping;    /* bytes that sleeping regions will hold once awake */
  int64_t host_backup; /* host memory of backups */
  int64_t file_backup; /* disk space of backups */
} somnus_tag_stats;

typedef struct somnus_allocator somnus_allocator;

/* options may be null. */
int somnus_create(const somnus_options* options, somnus_allocator** allocator);
/* Frees all memory of the allocator; null is allowed. */
void somnus_destroy(somnus_allocator* allocator);

/* A region of at least `bytes`; a null tag is the calling thread's (somnus_push_tag). */
int somnus_allocate(somnus_allocator* allocator, const char* tag, int64_t bytes, void** data);
/* As somnus_allocate, for `num_rows` rows of `row_bytes` each, of which only the first `wanted_row_bytes`
 * have memory, in whole chunks; a null tag as above. */
int somnus_allocate_rows(somnus_allocator* allocator, const char* tag, int64_t row_bytes, int64_t num_rows,
                         int64_t wanted_row_bytes, void** data);
/* Changes wanted_row_bytes of a region by its address. Only growth of a region that is awake can fail, and
 * has changed nothing then. */
int somnus_resize(somnus_allocator* allocator, void* data, int64_t wanted_row_bytes);
/* Frees a region by its address, asleep or not. */
int somnus_free(somnus_allocator* allocator, void* data);

/* Sets the tag of memory that this thread allocates without naming a tag, until the matching pop; pushes
 * nest. Without a push the tag is "default". A pop without a push does nothing. */
void somnus_push_tag(const char* tag);
void somnus_pop_tag(void);

/* Puts the regions of `count` tags to sleep: all or, after an error, none. modes[i] says whether the
 * contents of tags[i] are saved. */
int somnus_sleep(somnus_allocator* allocator, const char* const* tags, const int32_t* modes, size_t count);
/* Wakes the regions of `count` tags, or of all with count 0: all or, after an error, none. */
int somnus_wake(somnus_allocator* allocator, const char* const* tags, size_t count);

/* Sleep and wake-up in two phases, for several processes that change together: after a prepare that returned
 * SOMNUS_OK either the commit or the abort must come, and neither can fail. */
int somnus_prepare_sleep(somnus_allocator* allocator, const char* const* tags, const int32_t* modes,
                         size_t count);
void somnus_commit_sleep(somnus_allocator* allocator);
void somnus_abort_sleep(somnus_allocator* allocator);
int somnus_prepare_wake(somnus_allocator* allocator, const char* const* tags, size_t count);
void somnus_commit_wake(somnus_allocator* allocator);
void somnus_abort_wake(somnus_allocator* allocator);

/* To be called when the bytes of an awake tag have changed and the tag's backup is kept beyond the wake-up.
 */
int somnus_drop_backups(somnus_allocator* allocator, const char* tag);

/* Zeros for a tag that has no regions. */
int somnus_stats(somnus_allocator* allocator, const char* tag, somnus_tag_stats* stats);

/* The reason of the last failed call of this thread; valid until the thread's next failed call. Never null.
 */
const char* somnus_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* ALLOCATOR_SOMNUS_ALLOCATOR_H_ */
