#pragma once
// The self-check after a wake-up (options.wake_self_check): a fixed prompt, whose logits must be after a
// wake-up the logits from before the sleep.
//
// The fingerprint of the logits is taken when the ranks have new weights, from a load, a reload or an update.
// A wake-up that has brought weights or workspace back makes a check due. Until a check has found the same
// logits, the engine is asleep though all memory is resident; a check that finds other logits is refused, and
// nothing of the damaged memory or of its backup may be used. Plain state of the loop thread.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_tags.h"
#include "coordinator/residency/self_check.h"

namespace somnus {

class WakeCheck {
 public:
  // `batch_invariant`: as EngineOptions.
  WakeCheck(bool enabled, bool batch_invariant) : enabled_(enabled), batch_invariant_(batch_invariant) {}

  bool enabled() const { return enabled_; }
  // Nothing may be served before a check.
  bool due() const { return due_; }
  // The fingerprint of the weights has been taken.
  bool taken() const { return taken_.has_value(); }
  uint64_t fingerprint() const { return taken_->fingerprint; }

  void NoteWoken(const std::vector<std::string>& tags) {
    const auto checked = [](const std::string& tag) { return tag == kWeightsTag || tag == kWorkspaceTag; };
    due_ |= enabled_ && std::any_of(tags.begin(), tags.end(), checked);
  }
  // Every rank has other weights; some tags sleep, or all are resident (`awake`).
  void NoteNewWeights(bool awake) {
    taken_.reset();
    due_ = enabled_ && !awake;
  }
  // New workers have nothing that a wake-up could have damaged.
  void Forget() {
    taken_.reset();
    due_ = false;
  }
  // The wake-up may be served.
  void NoteServed() { due_ = false; }
  // Compares, or keeps the fingerprint where there is none to compare with.
  SelfCheckOutcome Judge(const SelfCheckResult& result) {
    if (!taken_.has_value() || !taken_->ComparesWith(result)) {
      taken_ = result;
      return SelfCheckOutcome::kTaken;
    }
    if (taken_->fingerprint == result.fingerprint) return SelfCheckOutcome::kSame;
    const bool promised = result.bitwise || batch_invariant_;
    return due_ && promised ? SelfCheckOutcome::kRefused : SelfCheckOutcome::kDifferent;
  }

 private:
  const bool enabled_;
  const bool batch_invariant_;
  std::optional<SelfCheckResult> taken_;
  bool due_ = false;
};

}  // namespace somnus
