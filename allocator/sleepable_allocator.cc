#include "allocator/sleepable_allocator.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "allocator/backup_store.h"
#include "allocator/compressed_store.h"
#include "allocator/host_backup.h"
#include "allocator/region.h"
#include "allocator/spill_store.h"
#include "base/monotonic.h"

namespace somnus {
namespace {

struct Entry {
  std::unique_ptr<Region> region;
  // A region that sleeps has no memory, except where the driver failed to unmap or to release it.
  bool asleep = false;
  std::unique_ptr<Backup> backup;  // of a sleeping region, or retained
  // While it sleeps: its memory was not released and is its own backup.
  bool kept_in_place = false;
  // Part of the prepared change:
  std::optional<RestoreMode> sleep_mode;
  bool new_backup = false;  // made by the prepared sleep
  bool waking = false;
};

// Pinning this much takes a few hundredths of a second, while the copy of what was pinned before runs.
constexpr int64_t kHostChunk = 256 << 20;

// Null: regions keep their memory, because a copy would take as much of the same.
std::unique_ptr<BackupStore> MakeStore(VmmDriver* driver, const SleepableAllocatorOptions& options) {
  if (options.backup == BackupPolicy::kFile) {
    return MakeSpillStore(driver, {.dir = options.spill_dir, .open_io = options.open_spill_io});
  }
  if (options.backup == BackupPolicy::kRelease && driver->HostIsDevice()) return nullptr;
  if (options.backup == BackupPolicy::kCompress) return MakeCompressedStore(driver, kHostChunk);
  return MakeHostBackupStore(driver, kHostChunk);
}

double SecondsSince(MonotonicTime begin) { return absl::ToDoubleSeconds(MonotonicNow() - begin); }

class SleepableAllocatorImpl : public SleepableAllocator {
 public:
  SleepableAllocatorImpl(VmmDriver* driver, const SleepableAllocatorOptions& options)
      : driver_(driver),
        chunk_bytes_(options.chunk_bytes),
        retains_backups_(options.backup != BackupPolicy::kRelease),
        store_(MakeStore(driver, options)) {}

  absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) override {
    if (bytes <= 0 || bytes > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(tag, ": a region of ", bytes, " bytes"));
    }
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::unique_ptr<Region>> region = Region::Reserve(driver_, tag, bytes, chunk_bytes_);
    if (!region.ok()) return region.status();
    if (absl::Status status = (*region)->Populate(); !status.ok()) return status;
    void* data = (*region)->data();
    entries_[data].region = *std::move(region);
    Publish();
    return data;
  }

  absl::Status Free(void* data) override {
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(data);
    if (it == entries_.end()) return absl::NotFoundError("no region at this address");
    absl::Status status = FreeRegion(it->second.region.get());
    if (status.ok()) entries_.erase(it);
    Publish();
    return status;
  }

  absl::Status PrepareSleep(const std::map<std::string, RestoreMode>& modes) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = RequireNothingPrepared(); !status.ok()) return status;
    const MonotonicTime begin = MonotonicNow();
    for (auto& [data, entry] : entries_) {
      const auto mode = modes.find(entry.region->tag());
      if (mode != modes.end()) entry.sleep_mode = mode->second;
    }
    prepared_ = Prepared::kSleep;
    absl::Status status = SaveBackups();
    backup_seconds_ = SecondsSince(begin);
    if (!status.ok()) ForgetSleep(/*keep_backups=*/false);
    Publish();
    return status;
  }

  SleepReport CommitSleep() override {
    absl::MutexLock lock(&mutex_);
    SleepReport report;
    if (prepared_ != Prepared::kSleep) return report;
    const MonotonicTime begin = MonotonicNow();
    for (auto& [data, entry] : entries_) {
      if (entry.sleep_mode.has_value()) PutToSleep(&entry, &report.tags[entry.region->tag()]);
    }
    ForgetSleep(/*keep_backups=*/true);
    report.backup_seconds = backup_seconds_;
    report.release_seconds = SecondsSince(begin);
    return report;
  }

  void AbortSleep() override {
    absl::MutexLock lock(&mutex_);
    if (prepared_ == Prepared::kSleep) ForgetSleep(retains_backups_);
    Publish();
  }

  absl::StatusOr<WakeNeed> CheckWake(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    WakeNeed need;
    absl::StatusOr<int64_t> available = driver_->AvailableBytes();
    if (!available.ok()) return available.status();
    need.available = *available;
    for (const Entry* entry : Asleep(tags)) {
      int64_t& needed = need.needed[entry->region->tag()];
      needed += std::max<int64_t>(0, entry->region->bytes() - entry->region->held_bytes());
    }
    int64_t left = need.available;
    for (const auto& [tag, needed] : need.needed) {
      if (needed > left) need.missing[tag] = needed - left;
      left = std::max<int64_t>(0, left - needed);
    }
    return need;
  }

  absl::Status PrepareWake(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = RequireNothingPrepared(); !status.ok()) return status;
    prepared_ = Prepared::kWake;
    const MonotonicTime begin = MonotonicNow();
    const std::vector<Entry*> asleep = Asleep(tags);
    for (Entry* entry : asleep) entry->waking = true;
    std::optional<MonotonicTime> first_copy;
    absl::Status status = MapAndRestore(asleep, &first_copy);
    map_seconds_ = SecondsSince(begin);
    // Waited for in any case: no copy may still run into memory that AbortWake unmaps.
    status.Update(driver_->Synchronize());
    restore_seconds_ = first_copy.has_value() ? SecondsSince(*first_copy) : 0;
    if (!status.ok()) ReleaseWaking();
    return status;
  }

  WakeReport CommitWake() override {
    absl::MutexLock lock(&mutex_);
    WakeReport report;
    if (prepared_ != Prepared::kWake) return report;
    for (auto& [data, entry] : entries_) {
      if (!entry.waking) continue;
      WakeReport::Tag& tag = report.tags[entry.region->tag()];
      tag.mapped += entry.region->bytes();
      if (entry.backup != nullptr || entry.kept_in_place) tag.restored += entry.region->bytes();
      if (!retains_backups_) entry.backup = nullptr;
      entry.asleep = entry.waking = entry.kept_in_place = false;
    }
    prepared_ = Prepared::kNothing;
    Publish();
    report.map_seconds = map_seconds_;
    report.restore_seconds = restore_seconds_;
    return report;
  }

  void AbortWake() override {
    absl::MutexLock lock(&mutex_);
    if (prepared_ == Prepared::kWake) ReleaseWaking();
  }

  void DropBackups(const std::string& tag) override {
    absl::MutexLock lock(&mutex_);
    for (auto& [data, entry] : entries_) {
      if (entry.region->tag() == tag && (!entry.asleep || entry.waking)) DropBackup(&entry);
    }
    Publish();
  }

  BytesByTag ResidentBytes() const override {
    BytesByTag bytes;
    for (const auto& [tag, stats] : Stats()) bytes[tag] = stats.resident;
    return bytes;
  }

  std::map<std::string, TagStats> Stats() const override {
    absl::MutexLock lock(&published_mutex_);
    return published_;
  }

 private:
  enum class Prepared { kNothing, kSleep, kWake };

  // Beyond any address space; keeps rounding from overflowing.
  static constexpr int64_t kMaxBytes = int64_t{1} << 46;

  absl::Status RequireNothingPrepared() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (prepared_ == Prepared::kNothing) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "a ", prepared_ == Prepared::kSleep ? "sleep" : "wake-up", " is prepared and has not ended yet"));
  }

  static void DropBackup(Entry* entry) {
    entry->backup = nullptr;
    entry->kept_in_place = false;
  }

  // The sleeping regions with these tags (empty: all), those with a backup first: their copies run while the
  // rest, a KV cache of most of the device, is mapped.
  std::vector<Entry*> Asleep(const std::vector<std::string>& tags) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Entry*> asleep;
    for (auto& [data, entry] : entries_) {
      if (!entry.asleep) continue;
      if (!tags.empty() && std::find(tags.begin(), tags.end(), entry.region->tag()) == tags.end()) continue;
      asleep.push_back(&entry);
    }
    std::stable_partition(asleep.begin(), asleep.end(),
                          [](const Entry* entry) { return entry->backup != nullptr; });
    return asleep;
  }

  // Each step keeps what it did: after an error it can be called again.
  static absl::Status ReleaseMemory(Region* region) {
    if (region->state() == Region::State::kResident) {
      if (absl::Status status = region->Detach(); !status.ok()) return status;
    }
    return region->Release();
  }

  absl::Status MakeUsable(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Region* const region = entry->region.get();
    if (region->state() == Region::State::kResident) return absl::OkStatus();
    if (region->state() == Region::State::kDetached) return region->Attach();
    return region->Populate(/*copy_follows=*/entry->backup != nullptr && store_->in_host_memory());
  }

  // Copies from host memory run by themselves while the rest is mapped. A file is read by this thread, so
  // another one maps the rest then.
  absl::Status MapAndRestore(const std::vector<Entry*>& entries, std::optional<MonotonicTime>* first_copy)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto rest = std::find_if(entries.begin(), entries.end(),
                             [](const Entry* entry) { return entry->backup == nullptr; });
    absl::Status mapped, status;
    std::thread mapper;
    if (rest != entries.begin() && rest != entries.end() && !store_->in_host_memory()) {
      mapper = std::thread([&mapped, this, begin = rest, end = entries.end()] {
        for (auto it = begin; it != end && mapped.ok(); ++it) mapped = MakeUsable(*it);
      });
    } else {
      rest = entries.end();
    }
    for (auto it = entries.begin(); it != rest && status.ok(); ++it) {
      status = MakeUsable(*it);
      if (status.ok() && (*it)->backup != nullptr) {
        if (!first_copy->has_value()) *first_copy = MonotonicNow();
        status = (*it)->backup->Restore((*it)->region->data());
      }
      if (!mapper.joinable()) Publish();
    }
    if (mapper.joinable()) mapper.join();
    Publish();
    status.Update(mapped);
    return status;
  }

  static absl::Status FreeRegion(Region* region) {
    if (absl::Status status = ReleaseMemory(region); !status.ok()) return status;
    return region->FreeAddress();
  }

  // Updates what Stats returns.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::map<std::string, TagStats> stats;
    for (const auto& [data, entry] : entries_) {
      TagStats& tag = stats[entry.region->tag()];
      const bool is_backup = entry.kept_in_place && !entry.waking;
      (is_backup ? tag.host_backup : tag.resident) += entry.region->held_bytes();
      if (entry.asleep) tag.sleeping += entry.region->bytes();
      if (entry.backup == nullptr) continue;
      (store_->in_host_memory() ? tag.host_backup : tag.file_backup) += entry.backup->stored_bytes();
    }
    absl::MutexLock lock(&published_mutex_);
    published_ = std::move(stats);
  }

  absl::Status SaveBackups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (store_ == nullptr) return absl::OkStatus();
    std::vector<Entry*> unsaved;
    int64_t bytes = 0;
    for (auto& [data, entry] : entries_) {
      if (entry.asleep || entry.sleep_mode != RestoreMode::kBackup || entry.backup != nullptr) continue;
      unsaved.push_back(&entry);
      bytes += entry.region->bytes();
    }
    store_->Expect(bytes);
    absl::Status status;
    for (Entry* entry : unsaved) {
      absl::StatusOr<std::unique_ptr<Backup>> backup =
          store_->Save(entry->region->data(), entry->region->bytes());
      status = backup.status();
      if (!status.ok()) break;
      entry->backup = *std::move(backup);
      entry->new_backup = true;
    }
    status.Update(driver_->Synchronize());
    return status;
  }

  void PutToSleep(Entry* entry, SleepReport::Tag* tag) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Region* const region = entry->region.get();
    const int64_t before = entry->kept_in_place ? 0 : region->held_bytes();
    const bool had_contents = !entry->asleep || entry->backup != nullptr || entry->kept_in_place;
    if (entry->sleep_mode == RestoreMode::kDiscard) {
      DropBackup(entry);
      if (had_contents) tag->discarded += region->bytes();
    } else if (store_ == nullptr && !entry->asleep) {
      entry->kept_in_place = true;
    }
    TakeMemory(*entry);
    entry->asleep = true;
    const int64_t after = entry->kept_in_place ? 0 : region->held_bytes();
    if (entry->backup != nullptr || entry->kept_in_place) tag->backed_up += region->bytes();
    if (entry->new_backup) tag->copied += region->bytes();
    tag->freed += std::max<int64_t>(0, before - after);
    tag->still_resident += after;
    Publish();
  }

  // What is not released stays accounted for in the region, which tries again.
  static void TakeMemory(const Entry& entry) {
    if (!entry.kept_in_place) {
      ReleaseMemory(entry.region.get()).IgnoreError();
    } else if (entry.region->state() == Region::State::kResident) {
      entry.region->Detach().IgnoreError();
    }
  }

  void ForgetSleep(bool keep_backups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [data, entry] : entries_) {
      if (entry.new_backup && !keep_backups) entry.backup = nullptr;
      entry.new_backup = false;
      entry.sleep_mode.reset();
    }
    prepared_ = Prepared::kNothing;
  }

  // Ends the prepared wake-up: all of it sleeps as before.
  void ReleaseWaking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [data, entry] : entries_) {
      if (entry.waking) TakeMemory(entry);
      entry.waking = false;
    }
    prepared_ = Prepared::kNothing;
    Publish();
  }

  VmmDriver* const driver_;
  const int64_t chunk_bytes_;
  const bool retains_backups_;
  const std::unique_ptr<BackupStore> store_;  // outlives the backups in entries_; null: kept in place
  absl::Mutex mutex_;                         // held while memory is mapped, copied and released
  std::map<void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  Prepared prepared_ ABSL_GUARDED_BY(mutex_) = Prepared::kNothing;
  double backup_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double map_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  double restore_seconds_ ABSL_GUARDED_BY(mutex_) = 0;
  mutable absl::Mutex published_mutex_;  // never held for long
  std::map<std::string, TagStats> published_ ABSL_GUARDED_BY(published_mutex_);
};

}  // namespace

std::unique_ptr<SleepableAllocator> SleepableAllocator::Create(VmmDriver* driver,
                                                               const SleepableAllocatorOptions& options) {
  return std::make_unique<SleepableAllocatorImpl>(driver, options);
}

absl::StatusOr<BytesByTag> SleepableAllocator::Sleep(const std::map<std::string, RestoreMode>& modes) {
  if (absl::Status status = PrepareSleep(modes); !status.ok()) return status;
  BytesByTag freed;
  for (const auto& [tag, report] : CommitSleep().tags) {
    if (report.freed > 0) freed[tag] = report.freed;
  }
  return freed;
}

absl::StatusOr<BytesByTag> SleepableAllocator::WakeUp(const std::vector<std::string>& tags) {
  if (absl::Status status = PrepareWake(tags); !status.ok()) return status;
  BytesByTag mapped;
  for (const auto& [tag, report] : CommitWake().tags) mapped[tag] = report.mapped;
  return mapped;
}

}  // namespace somnus
