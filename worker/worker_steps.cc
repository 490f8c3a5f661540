#include "worker/worker_steps.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/status_macros.h"
#include "proto/limits.h"

namespace somnus {

WorkerSteps::AwaitReply WorkerSteps::Launch(const v1::StepRequest& request) {
  ++num_in_progress_;
  // The step and `refused` are shared, because functions are copied.
  const auto refused = std::make_shared<absl::Status>();
  const auto step =
      std::make_shared<absl::StatusOr<std::unique_ptr<PendingStep>>>(Queue(request, refused.get()));
  return [this, step, refused, id = request.step_id(), epoch = request.group_epoch()] {
    const Heartbeat::Wait wait(timeout_);
    absl::StatusOr<v1::StepReply> result = step->ok() ? (**step)->Wait() : step->status();
    if (step->ok() && !result.ok()) epoch_.Fail(epoch, result.status()).IgnoreError();
    v1::StepReply reply = result.ok() ? *std::move(result) : v1::StepReply();
    if (result.ok() && !refused->ok()) {
      v1::SlotError* const error = reply.add_slot_errors();
      error->set_slot(kSwapsSlot);
      error->set_code(refused->raw_code());
      error->set_message(std::string(refused->message()));
    }
    --num_in_progress_;
    reply.set_step_id(id);
    reply.set_error_code(result.status().raw_code());
    reply.set_error_message(std::string(result.status().message()));
    reply.set_weights_version(weights_.record().version());
    reply.set_kv_host_bytes(cache_.host_bytes());
    return reply;
  };
}

absl::StatusOr<std::unique_ptr<PendingStep>> WorkerSteps::Queue(const v1::StepRequest& request,
                                                                absl::Status* refused) {
  RETURN_IF_ERROR(Admit(request));
  RETURN_IF_ERROR(epoch_.Resume());
  if (absl::Status status = cache_.BeginStep(request, refused); !status.ok())
    return epoch_.FailCurrent(status);
  absl::StatusOr<std::unique_ptr<PendingStep>> step = load_.runner()->Launch(request);
  if (!step.ok()) return epoch_.FailCurrent(step.status());
  return step;
}

// Every step of the epoch is counted, also a step that the worker's state refuses: otherwise the error of the
// number would hide the error of the state in the steps that follow.
absl::Status WorkerSteps::Admit(const v1::StepRequest& request) {
  RETURN_IF_ERROR(epoch_.Admit(request.group_epoch()));
  const int64_t id = request.step_id(), last = last_id_;
  absl::Status order;
  if (id < 1) {
    order = absl::InvalidArgumentError(absl::StrCat("step_id: must be positive, not ", id));
  } else if (stepped_in_epoch_ && id != last + 1) {
    order = absl::InvalidArgumentError(absl::StrCat("step_id: ", id, " does not follow ", last));
  } else {
    stepped_in_epoch_ = true;
    last_id_ = id;
  }
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kAwake}, "Execute"));
  RETURN_IF_ERROR(order);
  return RequireComputable("Execute");
}

absl::Status WorkerSteps::RequireComputable(const char* call) const {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kAwake}, call));
  RETURN_IF_ERROR(epoch_.lifecycle()->RequireNoTransition(call));
  if (weights_.record().stale())
    return absl::FailedPreconditionError(absl::StrCat(call, ": the weights are stale"));
  return epoch_.RequireGroup(call);
}

absl::StatusOr<v1::SelfCheckResponse> WorkerSteps::SelfCheck() {
  RETURN_IF_ERROR(RequireComputable("SelfCheck"));
  RETURN_IF_ERROR(epoch_.Resume());
  const absl::StatusOr<uint64_t> fingerprint = load_.runner()->SelfCheck();
  if (!fingerprint.ok()) return epoch_.FailCurrent(fingerprint.status());
  v1::SelfCheckResponse response;
  response.set_weights_version(weights_.record().version());
  response.set_fingerprint(*fingerprint);
  return response;
}

}  // namespace somnus
