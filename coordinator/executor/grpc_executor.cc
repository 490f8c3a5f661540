#include "coordinator/executor/grpc_executor.h"

#include <utility>

namespace somnus {

GrpcExecutor::GrpcExecutor(std::shared_ptr<GroupEpoch> epoch, Healer healer, OnAbort on_abort)
    : healer_(std::move(healer)), on_abort_(std::move(on_abort)), epoch_(std::move(epoch)) {}

GrpcExecutor::~GrpcExecutor() {
  OnFailure(nullptr);
  epoch()->ReportLoss(absl::CancelledError("the executor has ended"));
  if (lifecycle_.joinable()) lifecycle_.join();
}

std::shared_ptr<GroupEpoch> GrpcExecutor::epoch() const {
  absl::MutexLock lock(&mu_);
  return epoch_;
}

void GrpcExecutor::Serve(std::shared_ptr<GroupEpoch> next) {
  std::shared_ptr<GroupEpoch> last;
  {
    absl::MutexLock failure_lock(&failure_mu_);
    epoch()->OnFailure(nullptr);
    {
      absl::MutexLock lock(&mu_);
      last = std::exchange(epoch_, std::move(next));
      stall_ = absl::OkStatus();
    }
    if (on_failure_) epoch()->OnFailure(on_failure_);
  }
  last.reset();  // waits for its streams, which have been cancelled
  EndRecovery(absl::OkStatus());
}

void GrpcExecutor::GiveUp(const absl::Status& reason) { EndRecovery(reason); }

void GrpcExecutor::EndRecovery(const absl::Status& status) {
  absl::MutexLock lock(&recovered_mu_);
  if (on_recovered_) on_recovered_(status);
}

void GrpcExecutor::SleepAsync(const SleepSpec& spec, const std::vector<KeptBlock>& kept, LifecycleDone done) {
  RunLifecycle([this, spec, kept](GroupEpoch* epoch) { return epoch->Sleep(spec, kept, &committed_); },
               std::move(done));
}

void GrpcExecutor::WakeUpAsync(const std::vector<std::string>& tags, const std::vector<KeptBlock>& kept,
                               LifecycleDone done) {
  RunLifecycle([this, tags, kept](GroupEpoch* epoch) { return epoch->WakeUp(tags, kept, &committed_); },
               std::move(done));
}

// One call at a time: the thread of the one before has called its `done`, and is about to end.
void GrpcExecutor::RunLifecycle(std::function<absl::StatusOr<TransitionReport>(GroupEpoch*)> call,
                                LifecycleDone done) {
  if (lifecycle_.joinable()) lifecycle_.join();
  committed_ = false;
  lifecycle_ = std::thread(
      [epoch = epoch(), call = std::move(call), done = std::move(done)] { done(call(epoch.get())); });
}

absl::Status GrpcExecutor::Progress() const {
  absl::MutexLock lock(&mu_);
  return stall_;
}

void GrpcExecutor::ReportStall(const absl::Status& stall) {
  absl::MutexLock lock(&mu_);
  stall_ = stall;
}

void GrpcExecutor::OnFailure(std::function<void(absl::Status)> callback) {
  absl::MutexLock failure_lock(&failure_mu_);
  on_failure_ = std::move(callback);
  epoch()->OnFailure(on_failure_);
}

void GrpcExecutor::Abort(const absl::Status& reason) {
  epoch()->ReportLoss(reason);
  if (on_abort_) on_abort_(reason);
}

void GrpcExecutor::Recover(const Residency& held) {
  if (healer_) return healer_(held, /*restart=*/false);
  EndRecovery(Health());
}

void GrpcExecutor::Restart(const Residency& held) {
  if (healer_) return healer_(held, /*restart=*/true);
  EndRecovery(absl::FailedPreconditionError("nobody can start other workers"));
}

void GrpcExecutor::OnRecovered(std::function<void(absl::Status)> callback) {
  absl::MutexLock lock(&recovered_mu_);
  on_recovered_ = std::move(callback);
}

}  // namespace somnus
