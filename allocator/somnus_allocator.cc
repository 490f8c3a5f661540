#include "allocator/somnus_allocator.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/cuda_vmm_driver.h"
#include "allocator/hip_vmm_driver.h"
#include "allocator/host_vmm_driver.h"
#include "allocator/piece_codec.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/use_tag.h"
#include "base/status_macros.h"

struct somnus_allocator {
  std::unique_ptr<somnus::VmmDriver> driver;
  std::unique_ptr<somnus::SleepableAllocator> allocator;
};

namespace somnus {
namespace {

thread_local std::string last_error;
thread_local std::vector<std::unique_ptr<UseTag>> tag_scopes;

int Return(const absl::Status& status) {
  if (!status.ok()) last_error = std::string(status.message());
  return static_cast<int>(status.code());
}

absl::StatusOr<std::unique_ptr<VmmDriver>> OpenDriver(const somnus_options& options) {
  switch (options.device) {
    case SOMNUS_DEVICE_HOST:
      return MakeHostVmmDriver(
          {.num_threads = options.num_threads, .memory_limit_bytes = options.memory_limit_bytes});
    case SOMNUS_DEVICE_CUDA:
      return MakeCudaVmmDriver(options.device_index);
    case SOMNUS_DEVICE_HIP:
      return MakeHipVmmDriver(options.device_index);
  }
  return absl::InvalidArgumentError(absl::StrCat("device: there is no device ", options.device));
}

absl::StatusOr<BackupPolicy> ToPolicy(int32_t backup) {
  switch (backup) {
    case SOMNUS_BACKUP_RETAIN:
      return BackupPolicy::kRetain;
    case SOMNUS_BACKUP_RELEASE:
      return BackupPolicy::kRelease;
    case SOMNUS_BACKUP_FILE:
      return BackupPolicy::kFile;
    case SOMNUS_BACKUP_COMPRESS:
      RETURN_IF_ERROR(CheckCompression());
      return BackupPolicy::kCompress;
  }
  return absl::InvalidArgumentError(absl::StrCat("backup: there is no policy ", backup));
}

absl::StatusOr<std::unique_ptr<somnus_allocator>> Create(const somnus_options& given) {
  SleepableAllocatorOptions options;
  ASSIGN_OR_RETURN(options.backup, ToPolicy(given.backup));
  options.spill_dir = given.spill_dir == nullptr ? "" : given.spill_dir;
  if (options.spill_dir.empty() == (options.backup == BackupPolicy::kFile))
    return absl::InvalidArgumentError(
        "spill_dir: goes with SOMNUS_BACKUP_FILE, and neither without the other");
  options.chunk_bytes = given.chunk_bytes;
  auto made = std::make_unique<somnus_allocator>();
  ASSIGN_OR_RETURN(made->driver, OpenDriver(given));
  made->allocator = SleepableAllocator::Create(made->driver.get(), options);
  return made;
}

using Modes = std::map<std::string, RestoreMode>;

absl::StatusOr<Modes> ToModes(const char* const* tags, const int32_t* modes, size_t count) {
  Modes result;
  for (size_t i = 0; i < count; ++i) {
    if (modes[i] != SOMNUS_DISCARD && modes[i] != SOMNUS_BACKUP)
      return absl::InvalidArgumentError(absl::StrCat("modes: there is no mode ", modes[i]));
    result[tags[i]] = modes[i] == SOMNUS_BACKUP ? RestoreMode::kBackup : RestoreMode::kDiscard;
  }
  return result;
}

std::vector<std::string> ToTags(const char* const* tags, size_t count) { return {tags, tags + count}; }

}  // namespace
}  // namespace somnus

using somnus::Return;

extern "C" {

int somnus_create(const somnus_options* options, somnus_allocator** allocator) {
  auto made = somnus::Create(options == nullptr ? somnus_options{} : *options);
  if (made.ok()) *allocator = made->release();
  return Return(made.status());
}

void somnus_destroy(somnus_allocator* allocator) { delete allocator; }

int somnus_allocate(somnus_allocator* allocator, const char* tag, int64_t bytes, void** data) {
  const absl::StatusOr<void*> made =
      allocator->allocator->Allocate(tag == nullptr ? somnus::UseTag::Current() : tag, bytes);
  if (made.ok()) *data = *made;
  return Return(made.status());
}

int somnus_allocate_rows(somnus_allocator* allocator, const char* tag, int64_t row_bytes, int64_t num_rows,
                         int64_t wanted_row_bytes, void** data) {
  const absl::StatusOr<void*> made = allocator->allocator->AllocateRows(
      tag == nullptr ? somnus::UseTag::Current() : tag, row_bytes, num_rows, wanted_row_bytes);
  if (made.ok()) *data = *made;
  return Return(made.status());
}

int somnus_resize(somnus_allocator* allocator, void* data, int64_t wanted_row_bytes) {
  return Return(allocator->allocator->Resize(data, wanted_row_bytes));
}

int somnus_free(somnus_allocator* allocator, void* data) { return Return(allocator->allocator->Free(data)); }

void somnus_push_tag(const char* tag) { somnus::tag_scopes.push_back(std::make_unique<somnus::UseTag>(tag)); }

void somnus_pop_tag(void) {
  if (!somnus::tag_scopes.empty()) somnus::tag_scopes.pop_back();
}

int somnus_sleep(somnus_allocator* allocator, const char* const* tags, const int32_t* modes, size_t count) {
  const auto wanted = somnus::ToModes(tags, modes, count);
  return Return(wanted.ok() ? allocator->allocator->Sleep(*wanted).status() : wanted.status());
}

int somnus_wake(somnus_allocator* allocator, const char* const* tags, size_t count) {
  return Return(allocator->allocator->WakeUp(somnus::ToTags(tags, count)).status());
}

int somnus_prepare_sleep(somnus_allocator* allocator, const char* const* tags, const int32_t* modes,
                         size_t count) {
  const auto wanted = somnus::ToModes(tags, modes, count);
  return Return(wanted.ok() ? allocator->allocator->PrepareSleep(*wanted) : wanted.status());
}

void somnus_commit_sleep(somnus_allocator* allocator) { allocator->allocator->CommitSleep(); }

void somnus_abort_sleep(somnus_allocator* allocator) { allocator->allocator->AbortSleep(); }

int somnus_prepare_wake(somnus_allocator* allocator, const char* const* tags, size_t count) {
  return Return(allocator->allocator->PrepareWake(somnus::ToTags(tags, count)));
}

void somnus_commit_wake(somnus_allocator* allocator) { allocator->allocator->CommitWake(); }

void somnus_abort_wake(somnus_allocator* allocator) { allocator->allocator->AbortWake(); }

int somnus_drop_backups(somnus_allocator* allocator, const char* tag) {
  allocator->allocator->DropBackups(tag);
  return SOMNUS_OK;
}

int somnus_stats(somnus_allocator* allocator, const char* tag, somnus_tag_stats* stats) {
  const auto all = allocator->allocator->Stats();
  const auto it = all.find(tag);
  const somnus::TagStats found = it == all.end() ? somnus::TagStats{} : it->second;
  *stats = {found.resident, found.sleeping, found.host_backup, found.file_backup};
  return SOMNUS_OK;
}

const char* somnus_last_error(void) { return somnus::last_error.c_str(); }

}  // extern "C"
