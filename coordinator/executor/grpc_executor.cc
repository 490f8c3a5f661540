#include "coordinator/executor/grpc_executor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/heartbeat.h"
#include "base/memory_tags.h"

namespace somnus {

GrpcExecutor::GrpcExecutor(std::shared_ptr<GroupEpoch> epoch, Healer healer, OnAbort on_abort,
                           Dismisser dismisser)
    : healer_(std::move(healer)),
      on_abort_(std::move(on_abort)),
      dismisser_(std::move(dismisser)),
      epoch_(std::move(epoch)) {
  NoteBytes(this->epoch().get());
}

GrpcExecutor::~GrpcExecutor() {
  OnFailure(nullptr);
  epoch()->ReportLoss(absl::CancelledError("the executor has ended"));
  lifecycle_.Join();
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
  last.reset();  // waits for the epoch's streams, which have been cancelled
  NoteBytes(epoch().get());
  EndRecovery(absl::OkStatus());
}

void GrpcExecutor::GiveUp(const absl::Status& reason, bool ended) {
  if (ended) {
    absl::MutexLock lock(&mu_);
    bytes_ = GroupBytes();
  }
  EndRecovery(reason);
}

void GrpcExecutor::EndRecovery(const absl::Status& status) {
  absl::MutexLock lock(&recovered_mu_);
  if (on_recovered_) on_recovered_(status);
}

absl::StatusOr<v1::StepReply> GrpcExecutor::Wait(absl::Duration timeout) {
  const std::shared_ptr<GroupEpoch> current = epoch();
  const Heartbeat::Wait wait(timeout);
  absl::StatusOr<v1::StepReply> reply = current->Wait(timeout);
  if (!reply.ok()) return reply;
  absl::MutexLock lock(&mu_);
  if (epoch_ != current) return reply;
  bytes_.host[kKvCacheTag] = reply->kv_host_bytes();
  return reply;
}

void GrpcExecutor::SleepAsync(const SleepSpec& spec, const HostTierBlocks& host, LifecycleDone done) {
  RunLifecycle<absl::StatusOr<TransitionReport>>(
      [this, spec, host](GroupEpoch* epoch) { return epoch->Sleep(spec, host, &committed_); },
      std::move(done));
}

void GrpcExecutor::WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights,
                               const HostTierBlocks& host, LifecycleDone done) {
  RunLifecycle<absl::StatusOr<TransitionReport>>(
      [this, tags, reads_weights, host](GroupEpoch* epoch) {
        return epoch->WakeUp(tags, reads_weights, host, &committed_);
      },
      std::move(done));
}

void GrpcExecutor::SelfCheckAsync(SelfCheckDone done) {
  RunLifecycle<absl::StatusOr<SelfCheckResult>>([](GroupEpoch* epoch) { return epoch->SelfCheck(); },
                                                std::move(done));
}

void GrpcExecutor::ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) {
  RunLifecycle<absl::StatusOr<TransitionReport>>(
      [num_blocks, num_before](GroupEpoch* epoch) { return epoch->ResizeKvCache(num_blocks, num_before); },
      std::move(done));
}

void GrpcExecutor::SetAdaptersAsync(const std::vector<HeldAdapter>& adapters,
                                    const std::vector<HeldAdapter>& kept, LifecycleDone done) {
  RunLifecycle<absl::StatusOr<TransitionReport>>(
      [adapters, kept](GroupEpoch* epoch) { return epoch->SetAdapters(adapters, kept); }, std::move(done));
}

void GrpcExecutor::ReadAdaptersAsync(const std::vector<HeldAdapter>& adapters, LifecycleDone done) {
  const auto cancelled = std::make_shared<FailureLatch>();
  {
    absl::MutexLock lock(&mu_);
    read_ = cancelled;
  }
  RunLifecycle<absl::StatusOr<TransitionReport>>(
      [adapters, cancelled](GroupEpoch* epoch) { return epoch->ReadAdapters(adapters, cancelled.get()); },
      std::move(done), /*beside_steps=*/true);
}

void GrpcExecutor::CancelRead(const absl::Status& reason) {
  std::shared_ptr<FailureLatch> read;
  {
    absl::MutexLock lock(&mu_);
    read = read_;
  }
  if (read != nullptr) read->Fail(reason);
}

void GrpcExecutor::ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) {
  RunLifecycle<WeightsOutcome>(
      [path, version](GroupEpoch* epoch) { return epoch->weights()->Reload(path, version); },
      std::move(done));
}

void GrpcExecutor::BeginWeightUpdateAsync(const std::string& update_id, const std::string& port_token,
                                          const std::vector<v1::WeightChunk>& tensors, WeightsDone done) {
  RunLifecycle<WeightsOutcome>(
      [update_id, port_token, tensors](GroupEpoch* epoch) {
        return epoch->weights()->BeginUpdate(update_id, port_token, tensors);
      },
      std::move(done));
}

void GrpcExecutor::FinishWeightUpdateAsync(int64_t version, const std::optional<ReceivedWeights>& expected,
                                           WeightsDone done) {
  RunLifecycle<WeightsOutcome>(
      [version, expected](GroupEpoch* epoch) { return epoch->weights()->FinishUpdate(version, expected); },
      std::move(done));
}

// Calls come one at a time: the previous call has called `done`, and is about to end. The next call gets the
// same thread.
template <typename Result>
void GrpcExecutor::RunLifecycle(std::function<Result(GroupEpoch*)> call, std::function<void(Result)> done,
                                bool beside_steps) {
  committed_ = false;
  // Where no thread can be had, the engine's own thread waits: slow, but the call has its outcome.
  const auto run = [this, epoch = epoch(), call = std::move(call), done = std::move(done), beside_steps] {
    Result result = call(epoch.get());
    NoteBytes(epoch.get(), beside_steps);
    done(std::move(result));
  };
  const auto watched = [run, first = this->epoch()->workers().front().name] {
    const Heartbeat heartbeat("", absl::StrCat("lifecycle call to the group of ", first));
    run();
  };
  if (lifecycle_.Run(watched).ok()) return;
  run();  // watched as the engine's loop
}

// A rank that does not reply is lost, and the recovery brings the next news.
void GrpcExecutor::NoteBytes(GroupEpoch* epoch, bool beside_steps) {
  absl::StatusOr<GroupBytes> bytes = epoch->Bytes();
  if (!bytes.ok()) return;
  absl::MutexLock lock(&mu_);
  if (epoch_.get() != epoch) return;
  if (const auto kv = bytes_.host.find(kKvCacheTag); beside_steps && kv != bytes_.host.end())
    bytes->host[kKvCacheTag] = kv->second;
  bytes_ = *std::move(bytes);
}

GroupBytes GrpcExecutor::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
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

void GrpcExecutor::Dismiss(const absl::Status& reason) {
  if (dismisser_) return dismisser_(reason);
  EndRecovery(reason);
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
