#include "worker/operation_log.h"

#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "base/status_message.h"

namespace somnus {
namespace {

// How often a call that waits for another one's result asks whether it was cancelled.
constexpr absl::Duration kCancelInterval = absl::Milliseconds(20);

absl::StatusOr<std::string> Bounded(absl::StatusOr<std::string> result) {
  if (result.ok() || result.status().message().size() <= OperationLog::kMaxMessageBytes) return result;
  return WithMessage(result.status(), result.status().message().substr(0, OperationLog::kMaxMessageBytes));
}

}  // namespace

struct OperationLog::Record {
  std::string call;
  uint64_t age = 0;  // records are numbered as they come
  StopSignal done;   // `result` is there, and does not change any more
  absl::StatusOr<std::string> result;
};

void OperationLog::BeginEpoch(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (epoch <= epoch_) return;
  epoch_ = epoch;
  records_.clear();
}

absl::Status OperationLog::MakeRoom() {
  if (records_.size() < kMaxOperations) return absl::OkStatus();
  auto oldest = records_.end();
  for (auto it = records_.begin(); it != records_.end(); ++it) {
    if (!it->second->done.stopped()) continue;
    if (oldest == records_.end() || it->second->age < oldest->second->age) oldest = it;
  }
  if (oldest == records_.end()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("operation_id: ", kMaxOperations, " operations are under way"));
  }
  records_.erase(oldest);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<OperationLog::Record>> OperationLog::Find(const Operation& operation,
                                                                         std::shared_ptr<Record>* added) {
  if (operation.id == 0) return absl::InvalidArgumentError("operation_id: must not be 0");
  absl::MutexLock lock(&mu_);
  if (operation.epoch != epoch_) {
    return absl::FailedPreconditionError(absl::StrCat("group_epoch: the request is of epoch ",
                                                      operation.epoch, ", this worker is in epoch ", epoch_));
  }
  if (const auto known = records_.find(operation.id); known != records_.end()) {
    if (known->second->call == operation.call) return known->second;
    return absl::InvalidArgumentError(absl::StrCat("operation_id: ", operation.id, " is of a ",
                                                   known->second->call, ", not of a ", operation.call));
  }
  RETURN_IF_ERROR(MakeRoom());
  *added = std::make_shared<Record>();
  (*added)->call = operation.call;
  (*added)->age = next_age_++;
  records_[operation.id] = *added;
  return nullptr;
}

absl::StatusOr<std::string> OperationLog::Run(const Operation& operation,
                                              const std::function<bool()>& cancelled, const Work& work) {
  std::shared_ptr<Record> added;
  ASSIGN_OR_RETURN(const std::shared_ptr<Record> known, Find(operation, &added));
  if (added != nullptr) {
    added->result = Bounded(work());
    added->done.Stop();
    return added->result;
  }
  while (!known->done.WaitFor(kCancelInterval)) {
    if (cancelled()) {
      return absl::CancelledError(absl::StrCat(operation.call, ": the caller does not wait any longer"));
    }
  }
  return known->result;
}

}  // namespace somnus
