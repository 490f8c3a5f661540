#pragma once
// One served model in one coordinator process: what main starts, waits for and stops.
//
// Order of start: read the checkpoint's headers, bind all ports, start the workers; while these load the
// weights the tokenizer is read. Everything that can be wrong with flags, files and ports is found before a
// worker exists. Thread safety: RequestStop is thread safe, the rest is main's.

#include <memory>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/flags.h"

namespace somnus {

class Server {
 public:
  static std::unique_ptr<Server> Create(const Flags& flags);
  virtual ~Server() = default;

  // Returns once requests are served, or with what is wrong: Cancelled after RequestStop.
  virtual absl::Status Start() = 0;
  // Until RequestStop, or until the engine fails, unless --stay-after-failure; then drains, and ends the
  // workers in order. Returns the engine's error when it had failed.
  virtual absl::Status Run() = 0;
  // From any thread. `impatient`: open requests are aborted at once.
  virtual void RequestStop(bool impatient) = 0;
};

}  // namespace somnus
