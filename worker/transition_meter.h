#pragma once
// How far a rank is with its last transition, of the epoch (proto/transition.proto, TransitionProgress).
//
// Written by the runner thread, but for what bytes() and NoteRead count; read by any thread, at once, also
// while the transition works.

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
  // A transition begins, in kCopy or kMap. `moved_bytes` are those that bytes() will count, `read_bytes` of
  // memory that is filled from the checkpoint.
  void Begin(uint64_t id, bool wakes_up, int64_t moved_bytes, int64_t read_bytes);
  // Of the one that was begun. kCommitted and kAborted end it; after that nothing changes it.
  void SetPhase(TransitionPhase phase);
  // `loaded` of `total` bytes have come from the checkpoint, in whatever form it has them.
  void NoteRead(int64_t loaded, int64_t total);
  // A new epoch: there was no transition.
  void Forget();

  // For the allocator's driver, and for copies that are made without it.
  ByteMeter* bytes() { return &bytes_; }
  // Nullopt: there was none in the epoch.
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
