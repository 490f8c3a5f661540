#pragma once
// All listeners: HTTP for clients and for operators, and gRPC for both. The listeners are bound as soon as
// the headers of the checkpoints have been read, before tokenizers and weights are, and reply until SetModels
// that the model is loading. Thread safe.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/flags/flags.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

class Metrics;

class Front {
 public:
  // Binds all ports. Unavailable names the address that cannot be bound. `metrics`: of the first model, which
  // also count events that belong to no model. `starting` makes the report until SetModels, on any thread.
  static absl::StatusOr<std::unique_ptr<Front>> Start(const Flags& flags, std::shared_ptr<Metrics> metrics,
                                                      std::function<StateReport()> starting);
  virtual ~Front() = default;

  // From now on these models serve requests. To be called once.
  virtual void SetModels(const std::vector<ServedModel>& models) = 0;
  // To be called when the engine's state has changed, so that gRPC health follows at once; without the call
  // gRPC health follows within a second. Must not be called during or after Shutdown.
  virtual void OnStateChange() = 0;
  // Returns "http://127.0.0.1:8000, admin http://127.0.0.1:8001, gRPC 127.0.0.1:50051, admin gRPC
  // 127.0.0.1:50054"
  virtual std::string Addresses() const = 0;
  // How to reach the server first, each a line: the API's URL, the pages, and the command for a conversation.
  virtual std::vector<std::string> FirstSteps() const = 0;
  // The operators' port that was bound.
  virtual int admin_port() const = 0;
  // Open responses get `grace` to finish, then all connections are closed. Idempotent.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace somnus
