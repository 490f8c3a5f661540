#pragma once
// A served model: the checkpoint, the workers, the engine, and the parts that turn text into tokens and back.
//
// Open, then maybe ReadText, then Load, then Serve; at the end Drain, then EndWorkers. Open finds every error
// of the checkpoint's headers, before a worker exists. Thread safety: Interrupt and RankStatuses are for any
// thread, all other functions are for a single thread.

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
  // Serves flags.model.
  static std::unique_ptr<ServedEngine> Create(const Flags& flags);
  virtual ~ServedEngine() = default;

  // Reads the checkpoint's headers, and refuses a model without a tokenizer. From now on there are a name and
  // metrics, in the same registry as the metrics `beside`; null: there is no other model.
  virtual absl::Status Open(const Metrics* beside) = 0;
  virtual const std::string& name() const = 0;
  virtual const std::shared_ptr<Metrics>& metrics() const = 0;

  // Whether an earlier coordinator has left workers that may be adopted.
  virtual bool HasLeftWorkers() const = 0;
  // Reads the tokenizer, templates and grammars' vocabulary, and waits for the end, so that an error there
  // comes before any worker is touched.
  virtual absl::Status ReadText() = 0;
  // Starts the workers, or adopts workers that an earlier coordinator has left, and waits until the workers
  // hold the model; meanwhile the tokenizer is read, unless ReadText has read it, and an error there ends the
  // load. `make_room` is called before the workers take memory that they do not hold yet.
  virtual absl::Status Load(const std::function<absl::Status()>& make_room) = 0;
  // Makes the engine, which borrows the workers. Null: the model shares its devices with no other model.
  virtual absl::StatusOr<ServedModel> Serve(SharedDevices* devices) = 0;
  // Load, or the workers' present work, ends with `reason`.
  virtual void Interrupt(const absl::Status& reason) = 0;
  virtual std::vector<v1::RankStatus> RankStatuses() = 0;
  // From the construction until the model is served: how far the start has come, and which workers are
  // missing. On any thread.
  virtual StateReport Starting() const = 0;

  // Open requests end within `grace`; then the engine stops without telling anybody.
  virtual void Drain(absl::Duration grace) = 0;
  // `leave`: the workers stay for the next coordinator.
  virtual void EndWorkers(bool leave) = 0;
};

}  // namespace somnus
