#pragma once
// What a worker's weights are: their version, where they come from, and whether memory has them
// (proto/worker.proto, "Weights").

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

// InvalidArgument: it is no version that weights can have.
absl::Status CheckWeightsVersion(int64_t version);

// Thread safe.
class WeightsRecord {
 public:
  // They were read from a checkpoint's files, which have this fingerprint.
  void SetRead(int64_t version, const std::string& fingerprint);
  // A whole update has brought them.
  void SetUpdated(int64_t version, absl::string_view update_id);
  // Their memory was mapped, and nothing was written there: they are stale until their source is read.
  void SetUnread();
  // Their memory is written from now on: they are stale, and no source has them any more. Also of weights
  // that were never read.
  void SetOverwritten();
  // A sleep has given up their contents. They are not stale while they have no memory.
  void SetDiscarded();

  // 0 when there are none, and while they are stale.
  int64_t version() const;
  // Of the files, or "update <id>"; empty when no source has the weights.
  std::string fingerprint() const;
  // Memory is mapped, with contents of no version.
  bool stale() const;
  bool discarded() const;
  // The checkpoint that was read last has them.
  bool in_checkpoint() const;
  // That a checkpoint or an update has given them, also while they are stale or discarded.
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
