#pragma once
// The events that a worker waits for between two heartbeats: time, the loss of its connection to the
// coordinator, or, after that loss, somebody who listens at the coordinator's address again.
//
// The system closes the connections of a process that is killed, so its loss is known within milliseconds.
// Ownership: keeps the channel; nobody else may keep it any longer, since its end is what ends a watch.
// Thread safety: Stop is for any thread, the rest for one.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace somnus {

class ConnectionWatch {
 public:
  // `address`: where the channel leads, "host:port" or "unix:/path".
  static std::unique_ptr<ConnectionWatch> Create(std::shared_ptr<grpc::Channel> channel,
                                                 const std::string& address);
  virtual ~ConnectionWatch() = default;

  // Returns after `time`, or sooner when the channel is not connected any more.
  virtual void WaitForLoss(absl::Duration time) = 0;
  // Returns after `time`, or sooner when somebody listens at the address: true then, and the channel connects
  // without a pause. At a TCP address nobody is looked for.
  virtual bool WaitForListener(absl::Duration time) = 0;
  // Ends every wait, now and later. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace somnus
