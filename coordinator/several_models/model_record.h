#pragma once
// The record of one model that shares the devices.
//
// Ownership: ModelRecords owns the record and with the record the engine's observer; the result of
// SharedDevices::Add owns the engine. Threads: the members down to `weights_bytes` are constant once Add has
// returned, and `deadlines` is thread safe; ModelRecords::mu guards all others. A record is never removed, so
// a pointer stays valid for the life of SharedDevices.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/engine/engine.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/retry_backoff.h"
#include "coordinator/several_models/elastic_kv.h"
#include "coordinator/several_models/model_transition.h"
#include "coordinator/several_models/operator_marks.h"
#include "coordinator/several_models/request_deadlines.h"
#include "coordinator/several_models/residency_policy.h"
#include "coordinator/several_models/shared_devices_options.h"
#include "coordinator/several_models/sharing_model.h"

namespace somnus {

// The sum over all tags.
int64_t SumOfTags(const TagBytes& bytes);

struct ModelRecord {
  ModelRecord(int index, SharingModel options, const SharedDevicesOptions& devices);

  // Takes the engine, and the sizes of the model from what the engine holds `now`.
  void SetEngine(Engine* made, MonotonicTime now);

  // The policy's view of the model `now`. Updates the values that only a look at the engine tells: the need
  // of an elastic KV cache, since when requests wait, and marks that end once the model is awake.
  ModelView View(MonotonicTime now, absl::Duration kv_hold);
  // The host memory that a sleep at level 1 takes for the weights.
  int64_t BackupBytes(const EngineStats& stats) const;

  // The operator's wake-up that is being carried out or waits; null: none.
  const OperatorWake* Wake() const;
  // There was room for the wake-up that an operator's call waits for.
  bool IsWakeCarriedOut() const;
  // A request or an operator's wake-up has to wait until there is room.
  bool WaitsForRoom() const { return num_open > 0 || (operators.wanted() != nullptr && !IsWakeCarriedOut()); }
  // Requests cannot be served with the weights that are there: only a reload or an update brings new weights,
  // or an operator is about to replace the weights.
  bool LacksWeights(const EngineStats& stats) const;

  const int index;  // the policy's name of the model
  const SharingModel options;
  std::unique_ptr<EngineObserver> observer;
  Engine* engine = nullptr;
  RequestDeadlines deadlines;
  TagBytes tag_bytes;        // device memory while the model is awake with its whole KV cache
  int64_t device_bytes = 0;  // the sum of tag_bytes
  int64_t weights_bytes = 0;

  int64_t num_open = 0;  // requests: counted before the engine has a request, until the request ends
  MonotonicTime last_used;
  MonotonicTime waiting_since = absl::InfiniteDuration();  // as of the last View
  OperatorMarks operators;
  ModelTransition transition;
  RetryBackoff revival;  // when a failed engine is brought up again
  bool revives = false;  // a call of Engine::Revive is under way
  // The group epoch of the last sleep at level 1: every rank of that epoch has its part of the backup.
  int64_t backup_epoch = -1;
  ElasticKv kv;

 private:
  void ViewDeviceMemory(const EngineStats& stats, const OperatorWake* wake, ModelView* view) const;
  void ViewHostMemory(const EngineStats& stats, ModelView* view) const;
  void ViewRequests(const OperatorWake* wake, MonotonicTime now, ModelView* view);
  // The device memory that the model takes once these tags are awake, too.
  int64_t BytesAfter(const EngineStats& stats, const ModelView& view,
                     const std::vector<std::string>& tags) const;
  // The device memory that the model takes once its recovery has mapped the tags that do not sleep.
  int64_t RecoveredBytes(const EngineStats& stats, const ModelView& view) const;
  int64_t AwakeBytesOf(const std::string& tag, const ModelView& view) const;
};

}  // namespace somnus
