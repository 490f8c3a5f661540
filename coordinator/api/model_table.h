#pragma once
// Holds the models that a server serves: none while they load, then the same ones for good. Thread safe.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/served_model.h"

namespace somnus {

using SharedModel = std::shared_ptr<const ServedModel>;

class ModelTable {
 public:
  // To be called once. Sets max_token_bytes, all_names and word_speller of each.
  void Set(std::vector<ServedModel> models);
  // The one that a request gets that names none: the first. Null while they load.
  SharedModel Get() const;
  SharedModel Find(absl::string_view name) const;  // null: there is no such model, or they load
  std::vector<SharedModel> All() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<SharedModel> models_ ABSL_GUARDED_BY(mutex_);
};

// "a, b, c": the names for a message of all models that a server has, or the first few of many.
std::string ModelNames(const std::vector<SharedModel>& models);

}  // namespace somnus
