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

void GrpcExecutor::Serve(std::shared_ptr<GroupEpoch> next, const Held& held) {
  std::shared_ptr<GroupEpoch> last;
  {
    absl::MutexLock failure_lock(&failure_mu_);
    epoch()->OnFailure(nullptr);
    {
      absl::MutexLock lock(&mu_);
      last = std::exchange(epoch_, std::move(next));
      stall_ = absl::OkStatus();
      recovered_to_ = held;
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
  RunLifecycle([this, spec, kept, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->Sleep(spec, kept, &committed_));
  });
}

void GrpcExecutor::WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights,
                               const std::vector<KeptBlock>& kept, LifecycleDone done) {
  RunLifecycle([this, tags, reads_weights, kept, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->WakeUp(tags, reads_weights, kept, &committed_));
  });
}

void GrpcExecutor::SelfCheckAsync(SelfCheckDone done) {
  RunLifecycle([done = std::move(done)](GroupEpoch* epoch) { done(epoch->SelfCheck()); });
}

void GrpcExecutor::ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) {
  RunLifecycle([num_blocks, num_before, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->ResizeKvCache(num_blocks, num_before));
  });
}

void GrpcExecutor::ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) {
  RunLifecycle([path, version, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->weights()->Reload(path, version));
  });
}

void GrpcExecutor::BeginWeightUpdateAsync(const std::string& update_id, WeightsDone done) {
  RunLifecycle([update_id, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->weights()->BeginUpdate(update_id));
  });
}

void GrpcExecutor::FinishWeightUpdateAsync(int64_t version, WeightsDone done) {
  RunLifecycle([version, done = std::move(done)](GroupEpoch* epoch) {
    done(epoch->weights()->FinishUpdate(version));
  });
}

// One call at a time: the thread of the one before has called its `done`, and is about to end.
void GrpcExecutor::RunLifecycle(std::function<void(GroupEpoch*)> call) {
  if (lifecycle_.joinable()) lifecycle_.join();
  committed_ = false;
  lifecycle_ = std::thread([epoch = epoch(), call = std::move(call)] { call(epoch.get()); });
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

void GrpcExecutor::Recover(const Held& held) {
  if (healer_) return healer_(held, /*restart=*/false);
  EndRecovery(Health());
}

void GrpcExecutor::Restart(const Held& held) {
  if (healer_) return healer_(held, /*restart=*/true);
  EndRecovery(absl::FailedPreconditionError("nobody can start other workers"));
}

Held GrpcExecutor::recovered() const {
  absl::MutexLock lock(&mu_);
  return recovered_to_;
}

void GrpcExecutor::OnRecovered(std::function<void(absl::Status)> callback) {
  absl::MutexLock lock(&recovered_mu_);
  on_recovered_ = std::move(callback);
}

}  // namespace somnus
