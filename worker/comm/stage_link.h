#pragma once
// A one-way connection from a rank to the rank with the same place in the next stage of a pipeline, for the
// hidden states that the next stage goes on with. Through memory of the host, or, between GPUs, by NCCL
// (device_link.h).
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

  // True: Send and Receive are queued on the device's stream, with pointers to the device's memory, and the
  // host waits for nothing, as Communicator::stream_ordered says of collectives. False: pointers are to
  // memory of the host, and the bytes are there when Receive returns.
  virtual bool stream_ordered() const { return false; }

  // Both ends give the same number of bytes; otherwise a link that is not stream ordered fails with Internal.
  // A Send may return before the receiver has the bytes, which the sender may change then, by ops of the
  // device where the link is stream ordered.
  virtual absl::Status Send(const void* data, int64_t bytes) = 0;
  virtual absl::Status Receive(void* data, int64_t bytes) = 0;

  // Both ends tell each other `bytes` bytes of the host's memory, at most 4096; for agreements, before the
  // first message. Unimplemented where the link only goes one way.
  virtual absl::Status Exchange(const void* mine, void* theirs, int64_t bytes) {
    return absl::UnimplementedError("this link goes one way");
  }

  // As Communicator.
  virtual void Abort(const std::string& reason) = 0;
  virtual absl::Status status() const = 0;
  virtual absl::Status Suspend() { return absl::OkStatus(); }
  virtual absl::Status Resume() { return absl::OkStatus(); }
};

// A link within a host, through shared memory. `options`: of a group of two ranks. Blocks until both ends are
// there; errors as in MakeShmCommunicator.
absl::StatusOr<std::unique_ptr<StageLink>> MakeShmLink(const GroupOptions& options);

}  // namespace somnus
