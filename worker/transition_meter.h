#pragma once
// How far a rank is with the last transition of the epoch (proto/transition.proto, TransitionProgress).
//
// Thread safety: the runner thread alone begins a transition and sets its phases; any thread may count by
// bytes() and NoteRead. Progress is for any thread, and returns at once, also while the transition works.

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "allocator/byte_meter.h"
#include "base/monotonic.h"
#include "proto/transition.pb.h"

namespace somnus {

enum class TransitionPhase { kCopy, kRelease, kMap, kRead, kPrepared, kCommitted, kAborted };
// "copy", "release", ...
const char* TransitionPhaseName(TransitionPhase phase);

class TransitionMeter {
 public:
  // A transition begins, in kCopy or kMap. bytes() will count `moved_bytes`; `read_bytes` of memory are
  // filled from the checkpoint.
  void Begin(uint64_t id, bool wakes_up, int64_t moved_bytes, int64_t read_bytes);
  // Sets the phase of the transition. kCommitted and kAborted end the transition, which nothing changes then.
  void SetPhase(TransitionPhase phase);
  // `loaded` of `total` bytes of the checkpoint's files have come.
  void NoteRead(int64_t loaded, int64_t total);
  // A new epoch: there was no transition.
  void Forget();

  // For the allocator's driver, and for copies that are made without the driver.
  ByteMeter* bytes() { return &bytes_; }
  // Nullopt: there was no transition in the epoch.
  std::optional<v1::TransitionProgress> Progress() const;

 private:
  struct Record {
    uint64_t id = 0;
    bool wakes_up = false;
    TransitionPhase phase = TransitionPhase::kCopy;
    int64_t total_bytes = 0;
    int64_t read_bytes = 0;
    MonotonicTime begin;
    std::optional<MonotonicTime> end;
  };

  ByteMeter bytes_;
  std::atomic<double> read_part_{0};  // from 0 to 1
  mutable absl::Mutex mu_;            // never held for long
  std::optional<Record> record_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
