#pragma once
// The models that a coordinator process serves. Main starts the server, waits for the server and stops it.
//
// Start reads the checkpoints' headers, binds all ports and starts the workers; while the workers load the
// weights, Start reads the tokenizer. Workers that an earlier coordinator left, with --run-dir or on other
// hosts, need not load anything: where there may be such workers, Start reads the tokenizers of all models
// once the ports are bound, and before it touches any worker. So every error of flags, of the checkpoint's
// headers and of ports is found before a worker is started. Thread safety: RequestStop is thread safe;
// everything else is for main's thread.

#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/flags/flags.h"

namespace somnus {

struct StopRequest {
  bool impatient = false;      // open requests end at once
  bool leave_workers = false;  // for the next coordinator, with all that they hold
};

class Server {
 public:
  static std::unique_ptr<Server> Create(const Flags& flags);
  virtual ~Server() = default;

  // Returns when requests are served, or with the error that prevents service; Cancelled after RequestStop.
  virtual absl::Status Start() = 0;
  // The operators' port; to be called once, between Start and Run.
  virtual int admin_port() const = 0;
  // Serves until RequestStop, or until the engines of all models have failed (unless --stay-after-failure is
  // set); then drains, and ends the workers in order, or leaves the workers to the next coordinator.
  // Unavailable, with the engine's error, when the engine had failed.
  virtual absl::Status Run() = 0;
  // Thread safe. The latest request counts. Local workers are left only with --run-dir, without which nobody
  // could adopt them.
  virtual void RequestStop(const StopRequest& request) = 0;
};

}  // namespace somnus
