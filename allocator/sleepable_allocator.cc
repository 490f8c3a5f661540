#include "allocator/sleepable_allocator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "allocator/host_backup.h"
#include "allocator/region.h"

namespace somnus {
namespace {

struct Entry {
  std::unique_ptr<Region> region;
  std::unique_ptr<HostBackup> backup;  // of a sleeping region, or retained
};

class SleepableAllocatorImpl : public SleepableAllocator {
 public:
  SleepableAllocatorImpl(VmmDriver* driver, const SleepableAllocatorOptions& options)
      : driver_(driver), options_(options) {}

  absl::StatusOr<void*> Allocate(const std::string& tag, int64_t bytes) override {
    if (bytes <= 0 || bytes > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(tag, ": a region of ", bytes, " bytes"));
    }
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::unique_ptr<Region>> region = Region::Reserve(driver_, tag, bytes);
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

  absl::StatusOr<std::map<std::string, int64_t>> Sleep(
      const std::map<std::string, RestoreMode>& modes) override {
    absl::MutexLock lock(&mutex_);
    std::vector<Sleeper> sleepers;
    for (auto& [data, entry] : entries_) {
      const auto mode = modes.find(entry.region->tag());
      if (mode == modes.end()) continue;
      // Left over from a rollback that failed: it must be readable for its backup.
      if (entry.region->state() == Region::State::kDetached) {
        if (absl::Status status = entry.region->Attach(); !status.ok()) return status;
      }
      sleepers.push_back({&entry, mode->second, nullptr});
    }
    if (absl::Status status = SaveBackups(sleepers); !status.ok()) return status;
    if (absl::Status status = DetachAll(sleepers); !status.ok()) return status;
    return Commit(sleepers);
  }

  absl::StatusOr<std::map<std::string, int64_t>> WakeUp(const std::vector<std::string>& tags) override {
    absl::MutexLock lock(&mutex_);
    const std::vector<Waker> asleep = Asleep(tags);
    std::vector<Waker> woken;
    absl::Status status;
    for (const Waker& waker : asleep) {
      woken.push_back(waker);
      status = Wake(waker);
      Publish();
      if (!status.ok()) break;
    }
    // Waited for in any case: no copy may still run into memory that the rollback unmaps.
    status.Update(driver_->Synchronize());
    if (!status.ok()) {
      for (const Waker& waker : woken) PutBack(waker);
      Publish();
      return status;
    }
    std::map<std::string, int64_t> mapped;
    for (const Waker& waker : woken) {
      mapped[waker.entry->region->tag()] += waker.entry->region->bytes();
      if (!options_.retain_backups) waker.entry->backup = nullptr;
    }
    return mapped;
  }

  void DropBackups(const std::string& tag) override {
    absl::MutexLock lock(&mutex_);
    for (auto& [data, entry] : entries_) {
      const bool resident = entry.region->state() == Region::State::kResident;
      if (resident && entry.region->tag() == tag) entry.backup = nullptr;
    }
  }

  std::map<std::string, int64_t> ResidentBytes() const override {
    absl::MutexLock lock(&published_mutex_);
    return published_;
  }

 private:
  // Beyond any address space; keeps rounding from overflowing.
  static constexpr int64_t kMaxBytes = int64_t{1} << 46;

  struct Sleeper {
    Entry* entry;
    RestoreMode mode;
    std::unique_ptr<HostBackup> backup;  // made by this Sleep; Commit moves it to the entry
  };
  struct Waker {
    Entry* entry;
    bool was_detached;  // its memory was never released: contents are in place
  };

  // The sleeping regions with these tags (empty: all), those with a backup first: their copies run while the
  // rest, a KV cache of most of the device, is mapped.
  std::vector<Waker> Asleep(const std::vector<std::string>& tags) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Waker> asleep;
    for (auto& [data, entry] : entries_) {
      if (entry.region->state() == Region::State::kResident) continue;
      if (!tags.empty() && std::find(tags.begin(), tags.end(), entry.region->tag()) == tags.end()) continue;
      asleep.push_back({&entry, entry.region->state() == Region::State::kDetached});
    }
    std::stable_partition(asleep.begin(), asleep.end(),
                          [](const Waker& waker) { return waker.entry->backup != nullptr; });
    return asleep;
  }

  // Each step keeps what it did: after an error it can be called again.
  static absl::Status FreeRegion(Region* region) {
    if (region->state() == Region::State::kResident) {
      if (absl::Status status = region->Detach(); !status.ok()) return status;
    }
    if (absl::Status status = region->Release(); !status.ok()) return status;
    return region->FreeAddress();
  }

  // Updates what ResidentBytes returns.
  void Publish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::map<std::string, int64_t> bytes;
    for (const auto& [data, entry] : entries_) bytes[entry.region->tag()] += entry.region->held_bytes();
    absl::MutexLock lock(&published_mutex_);
    published_ = std::move(bytes);
  }

  absl::Status SaveBackups(std::vector<Sleeper>& sleepers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status;
    for (Sleeper& sleeper : sleepers) {
      const Region& region = *sleeper.entry->region;
      const bool wanted = sleeper.mode == RestoreMode::kHostBackup && sleeper.entry->backup == nullptr;
      if (!wanted || region.state() != Region::State::kResident) continue;
      absl::StatusOr<std::unique_ptr<HostBackup>> backup =
          HostBackup::Save(driver_, region.data(), region.bytes());
      if (!backup.ok()) {
        status = backup.status();
        break;
      }
      sleeper.backup = *std::move(backup);
    }
    status.Update(driver_->Synchronize());
    return status;
  }

  // Unmapping keeps contents, so it can still be undone; releasing, which cannot, comes after all have been
  // unmapped.
  absl::Status DetachAll(std::vector<Sleeper>& sleepers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::vector<Region*> detached;
    for (Sleeper& sleeper : sleepers) {
      Region* region = sleeper.entry->region.get();
      if (region->state() != Region::State::kResident) continue;
      detached.push_back(region);
      absl::Status status = region->Detach();
      if (status.ok()) continue;
      for (Region* undo : detached) {
        if (undo->state() == Region::State::kDetached) undo->Attach().IgnoreError();
      }
      return status;
    }
    return absl::OkStatus();
  }

  std::map<std::string, int64_t> Commit(std::vector<Sleeper>& sleepers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::map<std::string, int64_t> freed;
    for (Sleeper& sleeper : sleepers) {
      Entry& entry = *sleeper.entry;
      const int64_t before = entry.region->held_bytes();
      // A chunk that is not released stays accounted for in the region, which tries again.
      entry.region->Release().IgnoreError();
      Publish();
      if (before > 0) freed[entry.region->tag()] += before - entry.region->held_bytes();
      if (sleeper.backup != nullptr) entry.backup = std::move(sleeper.backup);
      if (sleeper.mode == RestoreMode::kDiscard) entry.backup = nullptr;
    }
    return freed;
  }

  absl::Status Wake(const Waker& waker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Region& region = *waker.entry->region;
    if (waker.was_detached) return region.Attach();
    if (absl::Status status = region.Populate(); !status.ok()) return status;
    return waker.entry->backup == nullptr ? absl::OkStatus() : waker.entry->backup->Restore(region.data());
  }

  void PutBack(const Waker& waker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Region& region = *waker.entry->region;
    if (region.state() == Region::State::kResident) region.Detach().IgnoreError();
    if (region.state() == Region::State::kDetached && !waker.was_detached) region.Release().IgnoreError();
  }

  VmmDriver* const driver_;
  const SleepableAllocatorOptions options_;
  absl::Mutex mutex_;  // held while memory is mapped, copied and released
  std::map<void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Mutex published_mutex_;  // never held for long
  std::map<std::string, int64_t> published_ ABSL_GUARDED_BY(published_mutex_);
};

}  // namespace

std::unique_ptr<SleepableAllocator> SleepableAllocator::Create(VmmDriver* driver,
                                                               const SleepableAllocatorOptions& options) {
  return std::make_unique<SleepableAllocatorImpl>(driver, options);
}

}  // namespace somnus
