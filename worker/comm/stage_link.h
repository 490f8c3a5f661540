#pragma once
// A one-way connection from a rank to the rank with the same place in the next stage of a pipeline, for the
// hidden states that the next stage goes on with.
//
// Memory is bounded by the buffer that the two ends share: a sender waits where the receiver is further
// behind than the buffer holds. Errors are those of collectives (communicator.h): a message whose peer died,
// was aborted or stayed away past the timeout ends in an error within a second of the cause, and afterwards
// the link stays failed. Used by the runner thread alone, except Abort and status, which are for any thread.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/group_options.h"

namespace somnus {

class StageLink {
 public:
  // The ranks of a link: GroupOptions::rank says which end a process is.
  static constexpr int kSender = 0, kReceiver = 1;

  virtual ~StageLink() = default;

  // Both ends give the same number of bytes, in memory of the host; otherwise the link fails with Internal. A
  // Send may return before the receiver has the bytes, which the sender may change then.
  virtual absl::Status Send(const void* data, int64_t bytes) = 0;
  virtual absl::Status Receive(void* data, int64_t bytes) = 0;

  // As Communicator.
  virtual void Abort(const std::string& reason) = 0;
  virtual absl::Status status() const = 0;
};

// A link within a host, through shared memory. `options`: of a group of two ranks. Blocks until both ends are
// there; errors as in MakeShmCommunicator.
absl::StatusOr<std::unique_ptr<StageLink>> MakeShmLink(const GroupOptions& options);

}  // namespace somnus
