#include "coordinator/engine/commands/update_command.h"

#include <utility>

#include "base/random_hex.h"
#include "base/status_macros.h"
#include "coordinator/engine/loop_access.h"

namespace somnus {
namespace {

constexpr size_t kUpdateIdBytes = 8;

class ClientUpdate : public WeightUpdate {
 public:
  ClientUpdate(Executor* executor, std::shared_ptr<LoopMail> events, std::shared_ptr<UpdateCommand> command)
      : executor_(executor), events_(std::move(events)), command_(std::move(command)) {}
  ~ClientUpdate() override { End({}); }

  absl::Status Send(v1::WeightChunk chunk) override {
    const absl::Status sent = executor_->SendWeights(command_->id(), std::move(chunk));
    // The engine knows best why the update has ended.
    return sent.ok() || !command_->ended().stopped() ? sent : command_->result().status();
  }
  absl::Status status() const override {
    return command_->ended().stopped() ? command_->result().status() : absl::OkStatus();
  }
  std::vector<v1::UpdatePort> ports() const override { return command_->ports(); }
  absl::StatusOr<WeightsChange> Finish(const std::optional<ReceivedWeights>& expected) override {
    End({.finishes = true, .expected = expected});
    RETURN_IF_ERROR(command_->result().status());
    return command_->change();
  }

 private:
  void End(UpdateCommand::ClientEnd end) {
    if (command_->ended().stopped()) return;
    command_->SetClientEnd(std::move(end));
    events_->Wake();
    command_->ended().WaitFor(absl::InfiniteDuration());
  }

  Executor* const executor_;
  const std::shared_ptr<LoopMail> events_;
  const std::shared_ptr<UpdateCommand> command_;
};

}  // namespace

std::unique_ptr<WeightUpdate> MakeWeightUpdate(Executor* executor, std::shared_ptr<LoopMail> events,
                                               std::shared_ptr<UpdateCommand> command) {
  return std::make_unique<ClientUpdate>(executor, std::move(events), std::move(command));
}

UpdateCommand::UpdateCommand(const WeightsRequest& request)
    : WeightsCommand(request),
      id_(RandomHex(kUpdateIdBytes)),
      port_token_(request.port_token),
      tensors_(request.tensors) {}

void UpdateCommand::Start(LoopAccess* loop) {
  if (!BeginChange(loop)) return;
  loop->parts().executor.BeginWeightUpdateAsync(id_, port_token_, tensors_, loop->ExpectWeights());
}

void UpdateCommand::SetClientEnd(ClientEnd end) {
  absl::MutexLock lock(&mu_);
  client_end_ = std::move(end);
}

void UpdateCommand::OnTurn(LoopAccess* loop) {
  std::optional<ClientEnd> end;
  {
    absl::MutexLock lock(&mu_);
    end = std::exchange(client_end_, std::nullopt);
  }
  if (!end.has_value()) return;
  if (!end->finishes) {
    return EndChange(loop, absl::CancelledError("the update of the weights was given up"));
  }
  is_finishing_ = true;
  const int64_t version = ChooseVersion(*loop);
  loop->parts().executor.FinishWeightUpdateAsync(version, end->expected, loop->ExpectWeights());
}

void UpdateCommand::OnOutcome(LoopAccess* loop, const WeightsOutcome& outcome) {
  if (!is_finishing_) {
    loop->PublishStats();
    ports_ = outcome.ports;
    return begun_.Stop();
  }
  Weights weights = loop->parts().holdings.weights();
  weights.update_id = id_;
  Take(loop, std::move(weights), outcome);
}

bool UpdateCommand::OnLoss(LoopAccess* loop) { return !loop->parts().holdings.residency().weights_stale(); }

void UpdateCommand::OnEnd(LoopAccess* loop) { loop->parts().executor.CancelWeightUpdate(); }

void UpdateCommand::Finish(absl::StatusOr<TransitionReport> result) {
  WeightsCommand::Finish(std::move(result));
  begun_.Stop();
}

}  // namespace somnus
