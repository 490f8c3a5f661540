#pragma once
// The Executor over gRPC: the engine's view of a group of workers that lives in epochs.
//
// Each epoch is a GroupEpoch. coordinator/group forms epochs, because that takes processes and membership. An
// epoch that fails stays current, with its failure, until Serve puts the next epoch in its place.
//
// Thread safety: as executor.h says for its methods; everything else may be called from any thread.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/threads.h"
#include "coordinator/executor/executor.h"
#include "coordinator/executor/failure_latch.h"
#include "coordinator/executor/group_epoch.h"

namespace somnus {

class GrpcExecutor : public Executor {
 public:
  // Forms the next epoch, and calls Serve or GiveUp in the end. Must not block. `restart`: all workers are
  // replaced, also healthy workers.
  using Healer = std::function<void(const Held& held, bool restart)>;
  // Called by Abort, after the current epoch has ended: a running formation of an epoch gives up.
  using OnAbort = std::function<void(const absl::Status&)>;
  // Ends the workers that can be replaced, and calls GiveUp in the end. Must not block.
  using Dismisser = std::function<void(const absl::Status&)>;

  // `epoch` has been formed. The constructor, like Serve, asks the ranks what they hold.
  GrpcExecutor(std::shared_ptr<GroupEpoch> epoch, Healer healer, OnAbort on_abort,
               Dismisser dismisser = nullptr);
  // Ends the current epoch.
  ~GrpcExecutor() override;

  // From now on `epoch` is the group's, and its ranks hold `held`; the recovery has succeeded.
  void Serve(std::shared_ptr<GroupEpoch> epoch, const Held& held = {});
  // The recovery has failed, and no further epoch follows. `ended`: all workers have ended, and hold nothing
  // any more.
  void GiveUp(const absl::Status& reason, bool ended = false);
  // The result of Progress from now on: a rank that hangs in a step for now, or ok.
  void ReportStall(const absl::Status& stall);

  absl::Status ExecuteAsync(v1::StepRequest* step) override { return epoch()->ExecuteAsync(step); }
  absl::Status SendMasks(v1::StepMasks masks) override { return epoch()->SendMasks(std::move(masks)); }
  absl::StatusOr<v1::StepReply> Wait(absl::Duration timeout) override;
  void SleepAsync(const SleepSpec& spec, const HostTierBlocks& host, LifecycleDone done) override;
  void WakeUpAsync(const std::vector<std::string>& tags, bool reads_weights, const HostTierBlocks& host,
                   LifecycleDone done) override;
  void ResizeKvCacheAsync(int32_t num_blocks, int32_t num_before, LifecycleDone done) override;
  bool committed() const override { return committed_.load(); }
  void SelfCheckAsync(SelfCheckDone done) override;
  absl::Status Prefetch() override { return epoch()->Prefetch(); }
  absl::StatusOr<std::vector<RankNeed>> PlanWakeUp(const std::vector<std::string>& tags) override {
    return epoch()->PlanWakeUp(tags);
  }
  void SetAdaptersAsync(const std::vector<HeldAdapter>& adapters, const std::vector<HeldAdapter>& kept,
                        LifecycleDone done) override;
  void ReadAdaptersAsync(const std::vector<HeldAdapter>& adapters, LifecycleDone done) override;
  void CancelRead(const absl::Status& reason) override;
  void ReloadWeightsAsync(const std::string& path, int64_t version, WeightsDone done) override;
  void BeginWeightUpdateAsync(const std::string& update_id, const std::string& port_token,
                              const std::vector<v1::WeightChunk>& tensors, WeightsDone done) override;
  absl::Status SendWeights(const std::string& update_id, v1::WeightChunk chunk) override {
    return epoch()->weights()->Send(update_id, std::move(chunk));
  }
  void FinishWeightUpdateAsync(int64_t version, const std::optional<ReceivedWeights>& expected,
                               WeightsDone done) override;
  void CancelWeightUpdate() override { epoch()->weights()->CancelUpdate(); }
  absl::Status Health() const override { return epoch()->Health(); }
  absl::Status Progress() const override;
  void OnFailure(std::function<void(absl::Status)> callback) override;
  void Abort(const absl::Status& reason) override;
  void LoseEpoch(const absl::Status& reason) override { epoch()->ReportLoss(reason); }
  void Recover(const Held& held) override;
  void Restart(const Held& held) override;
  void Dismiss(const absl::Status& reason) override;
  Held recovered() const override;
  GroupBytes bytes() const override;
  void OnRecovered(std::function<void(absl::Status)> callback) override;
  int64_t group_epoch() const override { return epoch()->number(); }

 private:
  std::shared_ptr<GroupEpoch> epoch() const;
  // `done` gets the call's result, once the bytes that the ranks hold then are known. `beside_steps`: as of
  // NoteBytes.
  template <typename Result>
  void RunLifecycle(std::function<Result(GroupEpoch*)> call, std::function<void(Result)> done,
                    bool beside_steps = false);
  // `beside_steps`: steps are computed meanwhile, and the host memory of the KV cache is as the last step
  // says.
  void NoteBytes(GroupEpoch* epoch, bool beside_steps = false) ABSL_LOCKS_EXCLUDED(mu_);
  void EndRecovery(const absl::Status& status);

  const Healer healer_;
  const OnAbort on_abort_;
  const Dismisser dismisser_;
  mutable absl::Mutex mu_;
  std::shared_ptr<GroupEpoch> epoch_ ABSL_GUARDED_BY(mu_);
  absl::Status stall_ ABSL_GUARDED_BY(mu_);
  Held recovered_to_ ABSL_GUARDED_BY(mu_);
  GroupBytes bytes_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<FailureLatch> read_ ABSL_GUARDED_BY(mu_);  // of the last ReadAdaptersAsync
  absl::Mutex failure_mu_;  // held while the callback moves from one epoch to the next
  std::function<void(absl::Status)> on_failure_ ABSL_GUARDED_BY(failure_mu_);
  absl::Mutex recovered_mu_;  // held while the callback runs
  std::function<void(absl::Status)> on_recovered_ ABSL_GUARDED_BY(recovered_mu_);
  std::atomic<bool> committed_{false};  // the last call of lifecycle_
  TaskThreads lifecycle_{1};            // runs the call under way
};

}  // namespace somnus
