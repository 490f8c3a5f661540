#include "allocator/sleepable_region.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "allocator/memory_shortage.h"

namespace somnus {
namespace {

// The shortage, by tag, where the regions get the `available` bytes in this order.
std::vector<MemoryShortage> MissingFor(const std::vector<SleepableRegion*>& regions, int64_t available) {
  std::map<std::string, MemoryShortage> by_tag;
  for (const SleepableRegion* one : regions) {
    if (one->kept_in_place) continue;
    const int64_t unmapped = std::max<int64_t>(0, one->region->wanted_bytes() - one->region->held_bytes());
    MemoryShortage& shortage = by_tag[one->region->tag()];
    shortage.needed_bytes += one->region->wanted_bytes();
    shortage.missing_bytes += MissingBytes(unmapped, available);
    available = std::max<int64_t>(0, available - unmapped);
  }
  std::vector<MemoryShortage> missing;
  for (auto& [tag, shortage] : by_tag) {
    if (shortage.missing_bytes == 0) continue;
    shortage.tag = tag;
    missing.push_back(std::move(shortage));
  }
  return missing;
}

}  // namespace

int64_t SleepableRegion::BytesToSleep(RestoreMode mode, bool keeps_in_place) const {
  const bool saves = mode == RestoreMode::kBackup;
  const bool keeps = saves && (kept_in_place || (keeps_in_place && !asleep));
  const bool copies = saves && !asleep && !keeps_in_place && backup == nullptr;
  return (keeps ? 0 : region->held_bytes()) + (copies ? region->wanted_bytes() : 0);
}

int64_t SleepableRegion::BytesToWake() const {
  // A region that is kept in place has its pages, but the pages have to be opened.
  const int64_t held = kept_in_place ? 0 : region->held_bytes();
  return std::max<int64_t>(0, region->wanted_bytes() - held) +
         (backup != nullptr ? region->wanted_bytes() : 0);
}

void SleepableRegion::AddTo(bool in_host_memory, TagStats* tag) const {
  const bool is_backup = kept_in_place && !waking;
  (is_backup ? tag->host_backup : tag->resident) += region->held_bytes();
  if (asleep) tag->sleeping += region->wanted_bytes();
  if (backup != nullptr) (in_host_memory ? tag->host_backup : tag->file_backup) += backup->stored_bytes();
}

void SleepableRegion::DropBackup() {
  backup = nullptr;
  kept_in_place = false;
}

void SleepableRegion::TakeMemory() {
  const auto take = [this] { return kept_in_place ? region->Detach() : region->Vacate(); };
  // Memory that stays is missing to other processes until the next sleep or wake-up, which may be far away.
  if (!take().ok()) take().IgnoreError();
}

void SleepableRegion::PutToSleep(bool keeps_in_place, SleepReport::Tag* tag) {
  const int64_t before = kept_in_place ? 0 : region->held_bytes();
  const bool had_contents = !asleep || backup != nullptr || kept_in_place;
  if (sleep_mode == RestoreMode::kDiscard) {
    DropBackup();
    if (had_contents) tag->discarded += region->wanted_bytes();
  } else if (keeps_in_place && !asleep) {
    kept_in_place = true;
  }
  TakeMemory();
  asleep = true;
  const int64_t after = kept_in_place ? 0 : region->held_bytes();
  if (backup != nullptr || kept_in_place) tag->backed_up += region->wanted_bytes();
  if (new_backup) tag->copied += region->wanted_bytes();
  tag->freed += std::max<int64_t>(0, before - after);
  tag->still_resident += after;
}

absl::Status WithBackupShortage(const absl::Status& status, const std::string& tag,
                                const std::vector<SleepableRegion*>& unsaved) {
  if (!absl::IsResourceExhausted(status)) return status;
  int64_t needed = 0;
  for (const SleepableRegion* one : unsaved) {
    if (one->region->tag() == tag) needed += one->region->wanted_bytes();
  }
  const std::vector<MemoryShortage> known = ShortagesOf(status);
  MemoryShortage shortage = {
      .tag = tag, .needed_bytes = needed, .missing_bytes = needed, .memory = MemoryKind::kHost};
  if (!known.empty()) shortage.missing_bytes = std::min(needed, known.front().missing_bytes);
  if (!known.empty()) shortage.memory = known.front().memory;
  return WithShortages(status, {shortage});
}

absl::Status WithWakeShortages(const absl::Status& status, const std::vector<SleepableRegion*>& waking,
                               VmmDriver* driver) {
  const std::vector<MemoryShortage> known = ShortagesOf(status);
  if (known.empty() || known.front().memory != MemoryKind::kDevice) return status;
  const absl::StatusOr<int64_t> available = driver->AvailableBytes();
  if (!available.ok()) return status;
  const std::vector<MemoryShortage> missing = MissingFor(waking, *available);
  return missing.empty() ? status : WithShortages(status, missing);
}

}  // namespace somnus
