#pragma once
// WakeUpRequest and WakeForArrivalsRequest: has the ranks map memory, and checks the memory that has come
// back where self-checks are asked for. A check that finds damage puts all memory to sleep at level 2, so
// that nothing of the damaged memory or of its backup is used, and the wake-up ends with DataLoss.

#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/commands/check_call.h"
#include "coordinator/engine/commands/sleep_call.h"
#include "coordinator/engine/commands/transition_command.h"

namespace somnus {

class WakeUpCommand : public TransitionCommand {
 public:
  struct Options {
    std::vector<std::string> tags;     // of memory; empty: all
    std::optional<bool> load_weights;  // as of WakeUpRequest
    bool ends_pause = false;           // also where tags stay asleep
    bool keeps_pause = false;          // a pause goes on, also where no tag sleeps any more
    bool for_arrivals = false;         // as of WakeForArrivalsRequest: declined during a pause
  };
  explicit WakeUpCommand(const Options& options) : TransitionCommand(options.tags), options_(options) {}

  const char* Name() const override { return "wake_up"; }
  bool EndsWaits() const override { return !options_.for_arrivals; }
  void Start(LoopAccess* loop) override;
  void OnResult(LoopAccess* loop, LoopMail::CallResult result) override;
  bool OnLoss(LoopAccess* loop) override;

 private:
  // The call of the executor that maps memory.
  struct Waking {
    std::vector<std::string> tags;
    bool weights_stale = false;  // weights among the tags are not read
  };

  // The reason of the state while the ranks wake; empty: the command's caller.
  std::string Why() const;
  void OnWoken(LoopAccess* loop, absl::StatusOr<TransitionReport> report);
  // Everything that was to be mapped is mapped.
  void Check(LoopAccess* loop, TransitionReport report);
  void OnChecked(LoopAccess* loop, const LoopMail::CallResult& result);
  void Serve(LoopAccess* loop, TransitionReport report);
  void GiveUpDamaged(LoopAccess* loop, const SelfCheckResult& result);
  void OnDamagedSlept(LoopAccess* loop, const absl::StatusOr<TransitionReport>& report);
  void Refuse(LoopAccess* loop, const absl::Status& status);

  const Options options_;
  std::optional<Waking> waking_;  // while the call is under way
  TransitionReport woken_;        // the report of the wake-up, during the check
  CheckCall check_;
  absl::Status damage_;  // why all memory is put to sleep
  SleepCall sleep_;      // of damaged memory
};

}  // namespace somnus
