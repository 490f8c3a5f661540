#pragma once
// Several models on the same devices: a thread that carries out what residency_policy.h decides.
//
// Each model has an engine of its own, which Add wraps: the wrapper counts requests, so that a model that
// sleeps is woken for requests, and takes operators' calls (operator_calls.h, weights_calls.h).
//
// A request is counted before its engine has the request. So a request that comes between the decision to
// sleep and the sleep is seen by the decision or by the sleep.
//
// The parts: ModelRecords has the models' records and their mutex; Transitions carries out decisions;
// Revivals brings up engines that have failed; KvResizer shares memory among elastic KV caches. KvResizer is
// asked whenever something has happened, and every kv_period while requests are open.
//
// Ownership: the result of Add owns the model's engine, and must live until Stop has returned; this object
// must outlive engine and result. Observers are borrowed as long. Thread safety: Add, MakeRoom, Start and
// Stop are for one thread; the wrappers are as thread safe as engine.h says.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "coordinator/engine/auto_sleep_engine.h"
#include "coordinator/engine/engine.h"
#include "coordinator/several_models/carrier_threads.h"
#include "coordinator/several_models/kv_resizer.h"
#include "coordinator/several_models/model_records.h"
#include "coordinator/several_models/operator_calls.h"
#include "coordinator/several_models/revivals.h"
#include "coordinator/several_models/shared_devices_options.h"
#include "coordinator/several_models/sharing_model.h"
#include "coordinator/several_models/transitions.h"
#include "coordinator/several_models/weights_calls.h"

namespace somnus {

class SharedDevices {
 public:
  using MakeEngine = AutoSleepEngine::MakeEngine;

  explicit SharedDevices(SharedDevicesOptions options);
  ~SharedDevices();

  // `make` makes the model's engine, in the state in which the model's workers are; that state does not count
  // as an operator's wish. Clients and operators call the result.
  std::shared_ptr<Engine> Add(SharingModel model, EngineObserver* observer, const MakeEngine& make);
  // Puts all models that were added to sleep, so that the next model can be loaded.
  absl::Status MakeRoom();
  // Decisions begin. InvalidArgument: a model is larger than the budget.
  absl::Status Start();
  // Decisions end. To be called after the engines were drained.
  void Stop();

 private:
  class Observer;

  void Run();
  // Looks at all models, and begins what is to be done. Returns how long the thread may wait for an event.
  absl::Duration Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

  absl::Status Submit(ModelRecord* model, std::vector<EngineRequest> requests)
      ABSL_LOCKS_EXCLUDED(models_.mu);
  void NoteEnded(ModelRecord* model, int64_t num_requests) ABSL_LOCKS_EXCLUDED(models_.mu);
  absl::Status Health(const ModelRecord& model) const ABSL_LOCKS_EXCLUDED(models_.mu);
  EngineStats Stats(const ModelRecord& model) const ABSL_LOCKS_EXCLUDED(models_.mu);

  ModelRecords models_;
  CarrierThreads threads_;
  Transitions transitions_;
  Revivals revivals_;
  KvResizer kv_resizer_;
  OperatorCalls operators_;
  WeightsCalls weights_;
  std::thread thread_;
};

}  // namespace somnus
