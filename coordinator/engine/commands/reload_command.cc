#include "coordinator/engine/commands/reload_command.h"

#include <utility>

#include "coordinator/engine/loop_access.h"

namespace somnus {

void ReloadCommand::Start(LoopAccess* loop) {
  if (!BeginChange(loop)) return;
  const std::string path = path_.empty() ? loop->parts().holdings.weights().path : path_;
  loop->parts().executor.ReloadWeightsAsync(path, ChooseVersion(*loop), loop->ExpectWeights());
}

void ReloadCommand::OnOutcome(LoopAccess* loop, const WeightsOutcome& outcome) {
  Weights weights = loop->parts().holdings.weights();
  if (!path_.empty()) weights.path = path_;
  weights.fingerprint = outcome.fingerprint;
  weights.update_id.clear();
  Take(loop, std::move(weights), outcome);
}

}  // namespace somnus
