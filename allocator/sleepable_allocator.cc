#include "allocator/sleepable_allocator.h"

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "allocator/backup_store.h"
#include "allocator/compressed_store.h"
#include "allocator/host_backup.h"
#include "allocator/memory_shortage.h"
#include "allocator/region_backup.h"
#include "allocator/sleepable_region.h"
#include "allocator/spill_store.h"
#include "base/cpus.h"
#include "base/monotonic.h"

namespace somnus {
namespace {

// Pinning this much takes a few hundredths of a second, while the copy into the previously pinned memory
// runs.
constexpr int64_t kHostChunk = 256 << 20;

// Null: regions keep their memory, because a copy would take as much of the same memory.
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
        options_(options),
        retains_backups_(options.backup != BackupPolicy::kRelease),
        store_(MakeStore(driver, options)) {}

  absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) override {
    return AllocateRegion(
        tag, {.row_bytes = bytes, .wanted_row_bytes = bytes, .chunk_bytes = options_.chunk_bytes});
  }

  absl::StatusOr<void*> AllocateRows(const std::string& tag, int64_t row_bytes, int64_t num_rows,
                                     int64_t wanted_row_bytes) override {
    const int64_t longest = options_.chunk_bytes > 0 ? options_.chunk_bytes : driver_->ChunkBytes();
    const int64_t chunk = std::clamp(row_bytes / kChunksOfRow, driver_->Granularity(),
                                     std::max(longest, driver_->Granularity()));
    return AllocateRegion(tag, {row_bytes, num_rows, wanted_row_bytes, chunk});
  }

  absl::Status Resize(void* data, int64_t wanted_row_bytes) override {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = RequireNothingPrepared(); !status.ok()) return status;
    const auto it = entries_.find(data);
    if (it == entries_.end()) return absl::NotFoundError("no region at this address");
    SleepableRegion& entry = it->second;
    if (wanted_row_bytes < 1 || wanted_row_bytes > entry.region->row_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(entry.region->tag(), ": ", wanted_row_bytes,
                                                     " bytes of rows of ", entry.region->row_bytes()));
    }
    if (entry.asleep && (entry.backup != nullptr || entry.kept_in_place))
      return absl::FailedPreconditionError(absl::StrCat(entry.region->tag(), " sleeps with its contents"));
    if (entry.asleep) entry.region->Vacate().IgnoreError();  // leftovers of an earlier failure
    const bool changes = wanted_row_bytes != entry.region->wanted_row_bytes();
    absl::Status status = entry.region->Resize(wanted_row_bytes);
    if (status.ok() && changes) entry.DropBackup();
    Publish();
    return status;
  }

  void BeginAsleep(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    begin_asleep_ = {tags.begin(), tags.end()};
  }

  absl::Status Free(void* data) override {
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(data);
    if (it == entries_.end()) return absl::NotFoundError("no region at this address");
    absl::Status status = it->second.region->Free();
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
      if (!entry.sleep_mode.has_value()) continue;
      entry.PutToSleep(/*keeps_in_place=*/store_ == nullptr, &report.tags[entry.region->tag()]);
      Publish();
    }
    ForgetSleep(/*keep_backups=*/true);
    report.backup_seconds = backup_seconds_;
    report.release_seconds = SecondsSince(begin);
    return report;
  }

  void AbortSleep() override {
    absl::MutexLock lock(&mutex_);
    if (prepared_ == Prepared::kSleep) ForgetSleep(/*keep_backups=*/false);
    Publish();
  }

  absl::StatusOr<WakeNeed> CheckWake(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    WakeNeed need;
    absl::StatusOr<int64_t> available = driver_->AvailableBytes();
    if (!available.ok()) return available.status();
    need.available = *available;
    for (const SleepableRegion* entry : Asleep(tags)) {
      int64_t& needed = need.needed[entry->region->tag()];
      needed += std::max<int64_t>(0, entry->region->wanted_bytes() - entry->region->held_bytes());
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
    const std::vector<SleepableRegion*> asleep = Asleep(tags);
    for (SleepableRegion* entry : asleep) entry->waking = true;
    std::optional<MonotonicTime> first_copy;
    absl::Status status = MapAndRestore(asleep, &first_copy);
    map_seconds_ = SecondsSince(begin);
    // Waited for in any case: no copy may still run into memory that AbortWake unmaps.
    status.Update(driver_->Synchronize());
    restore_seconds_ = first_copy.has_value() ? SecondsSince(*first_copy) : 0;
    if (status.ok()) return status;
    status = WithWakeShortages(status, asleep, driver_);
    ReleaseWaking();
    return status;
  }

  WakeReport CommitWake() override {
    absl::MutexLock lock(&mutex_);
    WakeReport report;
    if (prepared_ != Prepared::kWake) return report;
    for (auto& [data, entry] : entries_) {
      if (!entry.waking) continue;
      WakeReport::Tag& tag = report.tags[entry.region->tag()];
      tag.mapped += entry.region->wanted_bytes();
      if (entry.backup != nullptr || entry.kept_in_place) tag.restored += entry.region->wanted_bytes();
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

  int64_t SleepBytes(const std::map<std::string, RestoreMode>& modes) override {
    absl::MutexLock lock(&mutex_);
    int64_t bytes = 0;
    for (const auto& [data, entry] : entries_) {
      const auto mode = modes.find(entry.region->tag());
      if (mode != modes.end())
        bytes += entry.BytesToSleep(mode->second, /*keeps_in_place=*/store_ == nullptr);
    }
    return bytes;
  }

  int64_t WakeBytes(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    int64_t bytes = 0;
    for (const SleepableRegion* entry : Asleep(tags)) bytes += entry->BytesToWake();
    return bytes;
  }

  void DropBackups(const std::string& tag) override {
    absl::MutexLock lock(&mutex_);
    for (auto& [data, entry] : entries_) {
      if (entry.region->tag() == tag && (!entry.asleep || entry.waking)) entry.DropBackup();
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
  static constexpr int64_t kChunksOfRow = 16;

  absl::StatusOr<void*> AllocateRegion(const std::string& tag, const RegionShape& shape) {
    const int64_t row = shape.row_bytes, rows = shape.num_rows, wanted = shape.wanted_row_bytes;
    if (row < 1 || rows < 1 || row > kMaxBytes / rows || wanted < 1 || wanted > row) {
      return absl::InvalidArgumentError(
          absl::StrCat(tag, ": a region of ", rows, " x ", row, " bytes, ", wanted, " of each wanted"));
    }
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::unique_ptr<Region>> region = Region::Reserve(driver_, tag, shape);
    if (!region.ok()) return region.status();
    const bool asleep = begin_asleep_.count(tag) > 0;
    if (absl::Status status = asleep ? absl::OkStatus() : (*region)->Populate(); !status.ok()) return status;
    void* data = (*region)->data();
    entries_[data] = {.region = *std::move(region), .asleep = asleep};
    Publish();
    return data;
  }

  absl::Status RequireNothingPrepared() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (prepared_ == Prepared::kNothing) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "a ", prepared_ == Prepared::kSleep ? "sleep" : "wake-up", " is prepared and has not ended yet"));
  }

  // The sleeping regions with these tags (empty: all), regions with a backup first: copies run while the
  // rest, a KV cache of most of the device, is mapped.
  std::vector<SleepableRegion*> Asleep(const std::vector<std::string>& tags)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<SleepableRegion*> asleep;
    for (auto& [data, entry] : entries_) {
      if (!entry.asleep) continue;
      if (!tags.empty() && std::find(tags.begin(), tags.end(), entry.region->tag()) == tags.end()) continue;
      asleep.push_back(&entry);
    }
    std::stable_partition(asleep.begin(), asleep.end(),
                          [](const SleepableRegion* entry) { return entry->backup != nullptr; });
    return asleep;
  }

  absl::Status MakeUsable(SleepableRegion* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Region* const region = entry->region.get();
    if (region->state() == Region::State::kResident) return absl::OkStatus();
    return region->Populate(/*copy_follows=*/entry->backup != nullptr && store_->in_host_memory());
  }

  // Copies from host memory run by themselves while the rest is mapped. A file is read by this thread, so a
  // second thread maps the rest then.
  absl::Status MapAndRestore(const std::vector<SleepableRegion*>& entries,
                             std::optional<MonotonicTime>* first_copy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto rest = std::find_if(entries.begin(), entries.end(),
                             [](const SleepableRegion* entry) { return entry->backup == nullptr; });
    absl::Status mapped, status;
    std::thread mapper;
    if (rest != entries.begin() && rest != entries.end() && !store_->in_host_memory()) {
      mapper = std::thread([&mapped, this, begin = rest, end = entries.end()] {
        UnpinThisThread();
        for (auto it = begin; it != end && mapped.ok(); ++it) mapped = MakeUsable(*it);
      });
    } else {
      rest = entries.end();
    }
    for (auto it = entries.begin(); it != rest && status.ok(); ++it) {
      status = MakeUsable(*it);
      if (status.ok() && (*it)->backup != nullptr) {
        if (!first_copy->has_value()) *first_copy = MonotonicNow();
        status = OfTag((*it)->backup->Restore((*it)->region->data()), (*it)->region->tag());
      }
      if (!mapper.joinable()) Publish();
    }
    if (mapper.joinable()) mapper.join();
    Publish();
    status.Update(mapped);
    return status;
  }

  // Updates what Stats returns.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::map<std::string, TagStats> stats;
    const bool in_host_memory = store_ != nullptr && store_->in_host_memory();
    for (const auto& [data, entry] : entries_) entry.AddTo(in_host_memory, &stats[entry.region->tag()]);
    absl::MutexLock lock(&published_mutex_);
    published_ = std::move(stats);
  }

  absl::Status SaveBackups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (store_ == nullptr) return absl::OkStatus();
    std::vector<SleepableRegion*> unsaved;
    int64_t bytes = 0;
    for (auto& [data, entry] : entries_) {
      if (entry.asleep || entry.sleep_mode != RestoreMode::kBackup || entry.backup != nullptr) continue;
      unsaved.push_back(&entry);
      bytes += entry.region->wanted_bytes();
    }
    store_->Expect(bytes);
    absl::Status status;
    for (SleepableRegion* entry : unsaved) {
      absl::StatusOr<std::unique_ptr<Backup>> backup = SaveRegion(*entry->region, store_.get());
      status = WithBackupShortage(backup.status(), entry->region->tag(), unsaved);
      if (!status.ok()) break;
      entry->backup = *std::move(backup);
      entry->new_backup = true;
    }
    status.Update(driver_->Synchronize());
    return status;
  }

  void ForgetSleep(bool keep_backups) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [data, entry] : entries_) {
      if (entry.new_backup && !keep_backups) entry.backup = nullptr;
      entry.new_backup = false;
      entry.sleep_mode.reset();
    }
    prepared_ = Prepared::kNothing;
  }

  // Ends the prepared wake-up: all its regions sleep as before.
  void ReleaseWaking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [data, entry] : entries_) {
      if (entry.waking) entry.TakeMemory();
      entry.waking = false;
    }
    prepared_ = Prepared::kNothing;
    Publish();
  }

  VmmDriver* const driver_;
  const SleepableAllocatorOptions options_;
  const bool retains_backups_;
  const std::unique_ptr<BackupStore> store_;  // outlives the backups in entries_; null: kept in place
  absl::Mutex mutex_;                         // held while memory is mapped, copied and released
  std::map<void*, SleepableRegion> entries_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> begin_asleep_ ABSL_GUARDED_BY(mutex_);
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
