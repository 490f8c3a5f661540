#pragma once
// The masks of steps, on the way from the step stream to the runner thread. Masks depend on the tokens of the
// steps before, so that they come while the step's forward pass runs.
//
// Thread safe. Bounded: the masks of at most kMostSteps steps wait here, all of one epoch.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/step.pb.h"
#include "worker/runner/model_runner.h"

namespace somnus {

class MaskInbox : public StepMaskSource {
 public:
  // More than a coordinator sends ahead.
  static constexpr size_t kMostSteps = 16;

  // Keeps the masks for the step that they name, until all messages with masks of that step have come.
  // ResourceExhausted: too many steps' masks wait. FailedPrecondition: the epoch is over.
  absl::Status Put(int64_t group_epoch, v1::StepMasks masks);
  // Aborted, with the reason of EndUpTo: the epoch is over.
  absl::StatusOr<v1::StepMasks> AwaitMasks(int64_t group_epoch, int64_t step_id) override;
  // Until BeginEpoch of a later epoch, masks of `epoch` and of older epochs are not awaited any more.
  void EndUpTo(int64_t epoch, const std::string& reason);
  // The masks of older epochs are forgotten, and masks of `epoch` may come.
  void BeginEpoch(int64_t epoch);

 private:
  absl::Mutex mu_;
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;  // of the masks that wait
  std::deque<v1::StepMasks> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t ended_ ABSL_GUARDED_BY(mu_) = 0;  // the latest epoch that is over
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace somnus
