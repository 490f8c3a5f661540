/* The C header, compiled as C, over host memory: what a program in another language than C++ sees. It prints
 * what fails, and returns 1 then. */

#include <stdio.h>
#include <string.h>

#include "allocator/somnus_allocator.h"

#define MIB ((int64_t)1 << 20)

static int failures = 0;

static void check(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s; last error: %s\n", line, what, somnus_last_error());
  ++failures;
}
#define CHECK(condition) check((condition), #condition, __LINE__)

static somnus_tag_stats stats_of(somnus_allocator* memory, const char* tag) {
  somnus_tag_stats stats;
  memset(&stats, 0xff, sizeof(stats));
  CHECK(somnus_stats(memory, tag, &stats) == SOMNUS_OK);
  return stats;
}

/* Two tags: one is saved, the other one discarded; each wakes by itself. */
static void test_pools_sleep_by_tag(void) {
  static const char* const tags[] = {"weights", "kv_cache"};
  static const int32_t modes[] = {SOMNUS_BACKUP, SOMNUS_DISCARD};
  somnus_allocator* memory = NULL;
  void *weights = NULL, *cache = NULL;
  CHECK(somnus_create(NULL, &memory) == SOMNUS_OK);
  CHECK(somnus_allocate(memory, "weights", 4 * MIB, &weights) == SOMNUS_OK);
  CHECK(somnus_allocate(memory, "kv_cache", 8 * MIB, &cache) == SOMNUS_OK);
  memset(weights, 'w', 4 * MIB);
  CHECK(stats_of(memory, "weights").resident == 4 * MIB);
  CHECK(somnus_sleep(memory, tags, modes, 2) == SOMNUS_OK);
  CHECK(stats_of(memory, "weights").resident == 0);
  CHECK(stats_of(memory, "weights").sleeping == 4 * MIB);
  CHECK(stats_of(memory, "weights").host_backup == 4 * MIB);
  CHECK(stats_of(memory, "kv_cache").host_backup == 0);
  CHECK(somnus_wake(memory, tags, 1) == SOMNUS_OK);
  CHECK(((char*)weights)[0] == 'w' && ((char*)weights)[4 * MIB - 1] == 'w');
  CHECK(stats_of(memory, "kv_cache").sleeping == 8 * MIB);
  CHECK(somnus_wake(memory, NULL, 0) == SOMNUS_OK);
  memset(cache, 'k', 8 * MIB);
  CHECK(stats_of(memory, "kv_cache").resident == 8 * MIB);
  CHECK(stats_of(memory, "nothing").resident == 0);
  CHECK(somnus_free(memory, cache) == SOMNUS_OK);
  CHECK(stats_of(memory, "kv_cache").resident == 0);
  somnus_destroy(memory);
}

/* Code that cannot pass a tag on allocates under that of its thread. */
static void test_tags_of_a_thread(void) {
  somnus_allocator* memory = NULL;
  void* data = NULL;
  CHECK(somnus_create(NULL, &memory) == SOMNUS_OK);
  somnus_push_tag("outer");
  somnus_push_tag("inner");
  CHECK(somnus_allocate(memory, NULL, 2 * MIB, &data) == SOMNUS_OK);
  somnus_pop_tag();
  CHECK(somnus_allocate(memory, NULL, 2 * MIB, &data) == SOMNUS_OK);
  somnus_pop_tag();
  CHECK(somnus_allocate(memory, NULL, 2 * MIB, &data) == SOMNUS_OK);
  CHECK(stats_of(memory, "inner").resident == 2 * MIB);
  CHECK(stats_of(memory, "outer").resident == 2 * MIB);
  CHECK(stats_of(memory, "default").resident == 2 * MIB);
  somnus_destroy(memory);
}

/* What is prepared can be undone; a region of rows grows and shrinks. */
static void test_two_phases_and_rows(void) {
  static const char* const tags[] = {"weights"};
  static const int32_t modes[] = {SOMNUS_BACKUP};
  somnus_options options;
  somnus_allocator* memory = NULL;
  void *weights = NULL, *rows = NULL;
  memset(&options, 0, sizeof(options));
  options.backup = SOMNUS_BACKUP_RELEASE;
  options.memory_limit_bytes = 64 * MIB;
  CHECK(somnus_create(&options, &memory) == SOMNUS_OK);
  CHECK(somnus_allocate(memory, "weights", 2 * MIB, &weights) == SOMNUS_OK);
  ((char*)weights)[7] = 'w';
  CHECK(somnus_prepare_sleep(memory, tags, modes, 1) == SOMNUS_OK);
  CHECK(somnus_prepare_wake(memory, NULL, 0) == SOMNUS_FAILED_PRECONDITION);
  somnus_abort_sleep(memory);
  CHECK(((char*)weights)[7] == 'w');
  CHECK(somnus_prepare_sleep(memory, tags, modes, 1) == SOMNUS_OK);
  somnus_commit_sleep(memory);
  CHECK(stats_of(memory, "weights").resident == 0);
  CHECK(somnus_prepare_wake(memory, tags, 1) == SOMNUS_OK);
  somnus_abort_wake(memory);
  CHECK(stats_of(memory, "weights").resident == 0);
  CHECK(somnus_prepare_wake(memory, tags, 1) == SOMNUS_OK);
  somnus_commit_wake(memory);
  CHECK(((char*)weights)[7] == 'w');
  CHECK(somnus_drop_backups(memory, "weights") == SOMNUS_OK);
  CHECK(somnus_allocate_rows(memory, "kv_cache", 8 * MIB, 2, 8 * MIB, &rows) == SOMNUS_OK);
  CHECK(somnus_resize(memory, rows, 2 * MIB) == SOMNUS_OK);
  CHECK(stats_of(memory, "kv_cache").resident == 4 * MIB);
  somnus_destroy(memory);
}

static void test_errors(void) {
  somnus_options options;
  somnus_allocator* memory = NULL;
  void* data = NULL;
  memset(&options, 0, sizeof(options));
  options.device = 77;
  CHECK(somnus_create(&options, &memory) == SOMNUS_INVALID_ARGUMENT);
  CHECK(strcmp(somnus_last_error(), "device: there is no device 77") == 0);
  CHECK(memory == NULL);
  options.device = SOMNUS_DEVICE_HOST;
  options.memory_limit_bytes = 8 * MIB;
  CHECK(somnus_create(&options, &memory) == SOMNUS_OK);
  CHECK(somnus_allocate(memory, "weights", 16 * MIB, &data) == SOMNUS_RESOURCE_EXHAUSTED);
  CHECK(somnus_free(memory, &options) == SOMNUS_NOT_FOUND);
  CHECK(data == NULL);
  somnus_destroy(memory);
  somnus_destroy(NULL);
}

int main(void) {
  test_pools_sleep_by_tag();
  test_tags_of_a_thread();
  test_two_phases_and_rows();
  test_errors();
  return failures == 0 ? 0 : 1;
}
