#include "tools/bench/sleep/allocator_phases.h"

#include <bit>
#include <memory>

#include "absl/strings/str_cat.h"
#include "allocator/host_vmm_driver.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

const char* Name(BackupPolicy policy) {
  switch (policy) {
    case BackupPolicy::kRetain:
      return "retain";
    case BackupPolicy::kRelease:
      return "release";
    case BackupPolicy::kFile:
      return "file";
    case BackupPolicy::kCompress:
      return "compress";
  }
  return "?";
}

double SecondsSince(MonotonicTime begin) { return absl::ToDoubleSeconds(MonotonicNow() - begin); }

class AllocatorRound {
 public:
  AllocatorRound(BackupPolicy policy, const AllocatorPhasesOptions& options, const SleepFloors& floors,
                 PhaseTable* table)
      : policy_(policy),
        options_(options),
        floors_(floors),
        section_(absl::StrCat("allocator, backup ", Name(policy))),
        table_(table),
        driver_(MakeHostVmmDriver({.num_threads = options.threads})),
        allocator_(SleepableAllocator::Create(driver_.get(), {policy, options.spill_dir})) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(void* const weights, allocator_->Allocate(kWeightsTag, options_.weights_bytes));
    RETURN_IF_ERROR(allocator_->Allocate(kKvCacheTag, options_.kv_bytes).status());
    weights_ = static_cast<uint64_t*>(weights);
    for (int64_t i = 0; i < words(); ++i) weights_[i] = Word(i);
    RETURN_IF_ERROR(SleepOnce("first sleep", RestoreMode::kBackup));
    RETURN_IF_ERROR(WakeOnce("wake-up", RestoreMode::kBackup));
    for (int64_t i = 0; i < words(); ++i) {
      if (weights_[i] != Word(i)) return absl::DataLossError(absl::StrCat(section_, ": word ", i));
    }
    RETURN_IF_ERROR(SleepOnce("second sleep", RestoreMode::kBackup));
    RETURN_IF_ERROR(WakeOnce("second wake-up", RestoreMode::kBackup));
    RETURN_IF_ERROR(SleepOnce("sleep, all discarded", RestoreMode::kDiscard));
    return WakeOnce("wake-up, all discarded", RestoreMode::kDiscard);
  }

 private:
  int64_t words() const { return options_.weights_bytes / static_cast<int64_t>(sizeof(uint64_t)); }
  // As four weights in bfloat16: an exponent comes half as often as the next larger exponent, and the rest is
  // noise.
  static uint64_t Word(int64_t i) {
    uint64_t noise = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u, word = 0;
    noise ^= noise >> 29;
    for (int lane = 0; lane < 4; ++lane, noise >>= 16) {
      const uint64_t exponent = 122 - std::countr_zero(noise >> 8 | 0x100);
      word |= ((noise & 0x80) << 8 | exponent << 7 | (noise & 0x7f)) << (16 * lane);
    }
    return word;
  }
  int64_t bytes() const { return options_.weights_bytes + options_.kv_bytes; }

  absl::Status SleepOnce(const std::string& name, RestoreMode weights) {
    const MonotonicTime begin = MonotonicNow();
    RETURN_IF_ERROR(allocator_->PrepareSleep({{kWeightsTag, weights}, {kKvCacheTag, RestoreMode::kDiscard}}));
    const SleepReport report = allocator_->CommitSleep();
    table_->Add(section_, name, bytes(), SecondsSince(begin));
    table_->Add(section_, absl::StrCat(name, ": backup"), report.tags.at(kWeightsTag).copied,
                report.backup_seconds);
    table_->Add(section_, absl::StrCat(name, ": release"), bytes(), report.release_seconds,
                static_cast<double>(bytes()) / floors_.release);
    return absl::OkStatus();
  }

  absl::Status WakeOnce(const std::string& name, RestoreMode weights) {
    const MonotonicTime begin = MonotonicNow();
    RETURN_IF_ERROR(allocator_->PrepareWake({}));
    const WakeReport report = allocator_->CommitWake();
    table_->Add(section_, name, bytes(), SecondsSince(begin), WakeFloor(weights));
    table_->Add(section_, absl::StrCat(name, ": restore"), report.tags.at(kWeightsTag).restored,
                report.restore_seconds);
    return absl::OkStatus();
  }

  // All memory faulted in, and then the weights copied there, or read from the disk.
  double WakeFloor(RestoreMode weights) const {
    const double fault = static_cast<double>(bytes()) / floors_.fault;
    if (weights == RestoreMode::kDiscard) return fault;
    const double speed = policy_ == BackupPolicy::kFile ? floors_.disk_read : floors_.copy;
    return fault + static_cast<double>(options_.weights_bytes) / speed;
  }

  const BackupPolicy policy_;
  const AllocatorPhasesOptions& options_;
  const SleepFloors& floors_;
  const std::string section_;
  PhaseTable* const table_;
  const std::unique_ptr<VmmDriver> driver_;
  const std::unique_ptr<SleepableAllocator> allocator_;
  uint64_t* weights_ = nullptr;
};

}  // namespace

absl::Status MeasureAllocator(BackupPolicy policy, const AllocatorPhasesOptions& options,
                              const SleepFloors& floors, PhaseTable* table) {
  return AllocatorRound(policy, options, floors, table).Run();
}

}  // namespace somnus
