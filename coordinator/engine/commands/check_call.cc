#include "coordinator/engine/commands/check_call.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace somnus {

void CheckCall::Begin(LoopAccess* loop) {
  began_ = loop->parts().options.monotonic_now();
  loop->parts().executor.SelfCheckAsync(loop->ExpectCheck());
}

std::optional<SelfCheckOutcome> CheckCall::Judge(LoopAccess* loop, const SelfCheckResult& result) {
  const int64_t version = loop->parts().holdings.weights().version;
  if (result.weights_version != version) {
    loop->Lose(absl::InternalError(absl::StrCat("the workers have checked version ", result.weights_version,
                                                " of the weights, not ", version)));
    return std::nullopt;
  }
  const SelfCheckOutcome outcome = loop->parts().check.Judge(result);
  if (outcome == SelfCheckOutcome::kTaken) {
    LogInfo("{}self-check: fingerprint {:016x} of version {} of the weights", loop->parts().options.log_name,
            result.fingerprint, result.weights_version);
  } else if (outcome == SelfCheckOutcome::kDifferent) {
    LogWarning("{}self-check: the logits are not those of before, which without --batch-invariant may be",
               loop->parts().options.log_name);
  }
  loop->parts().observer.OnSelfCheck(
      {.outcome = outcome, .duration = loop->parts().options.monotonic_now() - *began_});
  return outcome;
}

}  // namespace somnus
