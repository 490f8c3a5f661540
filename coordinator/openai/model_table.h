#pragma once
// Holds the models that a server serves: none while the models load, then the same models for good. Thread
// safe.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/residency/state_report.h"

namespace somnus {

using SharedModel = std::shared_ptr<const ServedModel>;

class ModelTable {
 public:
  // `starting`: the report of a server whose models are being loaded; null: a report without details.
  explicit ModelTable(std::function<StateReport()> starting = nullptr);

  // Until Set.
  StateReport Starting() const;
  // To be called once. Sets max_token_bytes, all_names and word_speller of each.
  void Set(std::vector<ServedModel> models);
  // The first model: a request that names no model gets this model. Null while the models load.
  SharedModel Get() const;
  // A model, or an adapter: a model with is_adapter set, and otherwise as the adapter's model. Null: there is
  // no such name, or the models load.
  SharedModel Find(absl::string_view name) const;
  // The models alone.
  std::vector<SharedModel> All() const;
  // Requests may choose among several names.
  bool HasSeveralNames() const;

 private:
  const std::function<StateReport()> starting_;
  const absl::Time start_ = absl::Now();
  mutable absl::Mutex mutex_;
  std::vector<SharedModel> models_ ABSL_GUARDED_BY(mutex_);
};

// "a, b, c": the names for a message of all models that a server has, or the first few of many.
std::string ModelNames(const std::vector<SharedModel>& models);

}  // namespace somnus
