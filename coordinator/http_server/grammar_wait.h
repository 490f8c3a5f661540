#pragma once
// The constraint of a request on its way from the thread that compiles the grammar to the connection. Thread
// safe. Internal to coordinator/http_server.

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/openai/grammar_request.h"

namespace somnus {

class GrammarWait {
 public:
  void Set(ConstraintOrError result) {
    absl::MutexLock lock(&mutex_);
    result_ = std::move(result);
  }
  // Nullopt: the constraint is not known yet.
  std::optional<ConstraintOrError> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(result_, std::nullopt);
  }

 private:
  absl::Mutex mutex_;
  std::optional<ConstraintOrError> result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace somnus
