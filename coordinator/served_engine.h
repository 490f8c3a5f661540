#pragma once
// One served model: its checkpoint, its workers, its engine, and what turns text into tokens and back.
//
// Open, then Load, then Serve; at the end Drain, then EndWorkers. Whatever is wrong with the checkpoint's
// headers is found by Open, before a worker exists. Thread safety: Interrupt and RankStatuses are for any
// thread, everything else is for one.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/flags/flags.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"
#include "proto/control.pb.h"

namespace somnus {

class Metrics;
class SharedDevices;

class ServedEngine {
 public:
  // Of `flags` it serves flags.model.
  static std::unique_ptr<ServedEngine> Create(const Flags& flags);
  virtual ~ServedEngine() = default;

  // Reads the checkpoint's headers, and refuses a model without a tokenizer. From now on there are a name and
  // metrics, which are in one registry with those of `beside`; null: there is no other model.
  virtual absl::Status Open(const Metrics* beside) = 0;
  virtual const std::string& name() const = 0;
  virtual const std::shared_ptr<Metrics>& metrics() const = 0;

  // Whether an earlier coordinator has left workers that may be adopted.
  virtual bool HasLeftWorkers() const = 0;
  // Starts the workers, or adopts those that an earlier coordinator has left, and waits until they hold the
  // model; meanwhile the tokenizer is read, and an error there ends the load. `make_room` is called before
  // memory is taken that they do not hold.
  virtual absl::Status Load(const std::function<absl::Status()>& make_room) = 0;
  // Makes the engine, which borrows the workers. Null: it shares its devices with no other one.
  virtual absl::StatusOr<ServedModel> Serve(SharedDevices* devices) = 0;
  // Load, or what the workers do now, ends with `reason`.
  virtual void Interrupt(const absl::Status& reason) = 0;
  virtual std::vector<v1::RankStatus> RankStatuses() = 0;
  // From the construction until the model is served: how far the start has come, and which workers are
  // missing. On any thread.
  virtual StateReport Starting() const = 0;

  // Open requests end within `grace`; then the engine stops, and tells nobody of it.
  virtual void Drain(absl::Duration grace) = 0;
  // `leave`: they stay for the next coordinator.
  virtual void EndWorkers(bool leave) = 0;
};

}  // namespace somnus
