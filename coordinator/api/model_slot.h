#pragma once
// Holds the model that a server serves: nothing while it loads, then the same model for good. Thread safe.

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/api/served_model.h"

namespace somnus {

class ModelSlot {
 public:
  // To be called once. Sets model.max_token_bytes.
  void Set(ServedModel model);
  std::shared_ptr<const ServedModel> Get() const;  // null while loading

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServedModel> model_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus
