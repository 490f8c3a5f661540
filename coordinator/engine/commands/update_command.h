#pragma once
// UpdateWeightsRequest: a client sends the tensors of new weights. The update is under way, as a
// command, until the client finishes the update or gives the update up, or until a loss of the group: chunks
// that were sent cannot be sent again.
//
// The client waits for begun(), and then has the update (MakeWeightUpdate), by which the client's thread says
// how the update ends; the loop takes the word in its next turn.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/engine/commands/weights_command.h"
#include "coordinator/executor/executor.h"
#include "proto/weights.pb.h"

namespace somnus {

class UpdateCommand : public WeightsCommand {
 public:
  explicit UpdateCommand(const WeightsRequest& request);

  const char* Name() const override { return "update_weights"; }
  void Start(LoopAccess* loop) override;
  void OnTurn(LoopAccess* loop) override;
  bool OnLoss(LoopAccess* loop) override;
  void OnEnd(LoopAccess* loop) override;
  void Finish(absl::StatusOr<TransitionReport> result) override;

  // Chunks may be sent, or the update has ended.
  const StopSignal& begun() const { return begun_; }
  const std::string& id() const { return id_; }
  // Of an update that has begun: where a direct update's client sends chunks.
  const std::vector<v1::UpdatePort>& ports() const { return ports_; }
  // How the client ends the update.
  struct ClientEnd {
    bool finishes = false;  // false: the update is given up
    std::optional<ReceivedWeights> expected;
  };
  void SetClientEnd(ClientEnd end) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnOutcome(LoopAccess* loop, const WeightsOutcome& outcome) override;
  bool updates() const override { return true; }

  const std::string id_;
  const std::string port_token_;                // as of WeightsRequest
  const std::vector<v1::WeightChunk> tensors_;  // as of WeightsRequest
  std::vector<v1::UpdatePort> ports_;           // set before begun_ stops
  bool is_finishing_ = false;                   // the executor's last call is under way
  StopSignal begun_;

  absl::Mutex mu_;
  std::optional<ClientEnd> client_end_ ABSL_GUARDED_BY(mu_);
};

// The client's end of an update that has begun. `executor` is borrowed; `events` wakes the loop.
std::unique_ptr<WeightUpdate> MakeWeightUpdate(Executor* executor, std::shared_ptr<LoopMail> events,
                                               std::shared_ptr<UpdateCommand> command);

}  // namespace somnus
