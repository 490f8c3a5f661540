#pragma once
// The state of a worker's weights: the version, the source, and whether memory has the weights
// (proto/worker.proto, "Weights").

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// InvalidArgument: weights cannot have this version.
absl::Status CheckWeightsVersion(int64_t version);

// Thread safe.
class WeightsRecord {
 public:
  // The weights were read from a checkpoint's files, which have this fingerprint.
  void SetRead(int64_t version, const std::string& fingerprint);
  // A whole update has brought the weights.
  void SetUpdated(int64_t version, absl::string_view update_id);
  // The memory was mapped, and nothing was written there: the weights are stale until their source is read.
  void SetUnread();
  // The memory is written from now on: the weights are stale, and no source has them any more. Also for
  // weights that were never read.
  void SetOverwritten();
  // A sleep has given up the contents. Weights without memory are not stale.
  void SetDiscarded();

  // 0 when there are no weights, and while the weights are stale.
  int64_t version() const;
  // The fingerprint of the files, or "update <id>"; empty when no source has the weights.
  std::string fingerprint() const;
  // Memory is mapped, with contents of no version.
  bool stale() const;
  bool discarded() const;
  // The checkpoint that was read last has the weights.
  bool in_checkpoint() const;
  // The version that a checkpoint or an update has given, also while the weights are stale or discarded.
  int64_t source_version() const;

 private:
  enum class Contents { kNone, kWhole, kStale, kDiscarded };
  enum class Source { kNone, kCheckpoint, kUpdate };

  mutable absl::Mutex mu_;
  Contents contents_ ABSL_GUARDED_BY(mu_) = Contents::kNone;
  Source source_ ABSL_GUARDED_BY(mu_) = Source::kNone;
  int64_t version_ ABSL_GUARDED_BY(mu_) = 0;  // of the source
  std::string fingerprint_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
