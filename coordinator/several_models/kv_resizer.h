#pragma once
// Shares device memory among the elastic KV caches of models that are awake together: asks kv_shares.h, and
// carries out the resizes, each on a thread while the resize lasts.
//
// Before a model is put to sleep for a model that waits, memory that other caches do not need is taken for
// the waiting model: for kv_patience the policy sees the waiting model as a model that is not to be woken
// yet.
//
// Owns nothing: the state of a resize is ElasticKv of the model. Threads: Share is for the thread of
// SharedDevices, with ModelRecords::mu held.

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/monotonic.h"
#include "coordinator/several_models/carrier_threads.h"
#include "coordinator/several_models/kv_shares.h"
#include "coordinator/several_models/model_records.h"
#include "coordinator/several_models/residency_policy.h"

namespace somnus {

class KvResizer {
 public:
  // Both are borrowed.
  KvResizer(ModelRecords* models, CarrierThreads* threads) : models_(*models), threads_(*threads) {}

  // Begins what kv_shares.h decides. Models that will get their memory that way wait in `views`. Returns when
  // to look again, without an event before.
  MonotonicTime Share(MonotonicTime now, std::vector<ModelView>* views)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);

 private:
  KvShareView View(const ModelRecord& model, const ModelView& view, MonotonicTime now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  // Lets the models in `views` wait that `plan` serves, or that a resize under way may serve.
  void LetWait(const KvSharesPlan& plan, bool resizes, int64_t free, MonotonicTime now,
               std::vector<ModelView>* views) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  void Begin(const KvResize& resize) ABSL_EXCLUSIVE_LOCKS_REQUIRED(models_.mu);
  void CarryOut(ModelRecord* model, int32_t blocks) ABSL_LOCKS_EXCLUDED(models_.mu);

  ModelRecords& models_;
  CarrierThreads& threads_;
};

}  // namespace somnus
