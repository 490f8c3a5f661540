#pragma once
// Checksums of the weights of a model's ranks, and a snapshot of them to compare with later.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// A rank's part of tensors that lie in memory as one.
struct TensorChecksum {
  std::string name;  // the checkpoint's names: "a.weight+b.weight"
  int64_t bytes = 0;
  uint64_t checksum = 0;
  friend bool operator==(const TensorChecksum&, const TensorChecksum&) = default;
};

struct RankChecksums {
  int32_t replica = 0, rank = 0;
  int32_t stage = 0, rank_of_stage = 0;  // of a pipeline; else 0 and the rank
  int64_t weights_version = 0;
  std::vector<TensorChecksum> tensors;
};

// By replica, then by rank.
using ModelChecksums = std::vector<RankChecksums>;

// The checksums that were kept last. Thread safe.
class ChecksumSnapshot {
 public:
  void Set(ModelChecksums sums) {
    absl::MutexLock lock(&mu_);
    kept_ = std::move(sums);
  }
  // Nullopt: none were kept.
  std::optional<ModelChecksums> Get() const {
    absl::MutexLock lock(&mu_);
    return kept_;
  }

 private:
  mutable absl::Mutex mu_;
  std::optional<ModelChecksums> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
