#pragma once
// The wishes of operators for one model that still hold: a sleep that requests do not end, memory that must
// stay, a wake-up that waits for room, host memory that is promised to a sleep under way.
//
// A value of ModelRecord, guarded by ModelRecords::mu. Invariants: a model that is resident is not half awake
// once EndStage was called; each BeginSleep has one EndSleep, each Hold one Release, and each Want one
// EndWake.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine.h"
#include "coordinator/residency/transition_report.h"

namespace somnus {

// Whether all memory of an engine in this state is on the device.
bool IsResident(EngineState state);

// The arguments of an operator's wake-up.
struct WakeUpCall {
  std::vector<std::string> tags;  // empty: all
  std::optional<bool> load_weights;
  bool stages = false;  // memory that the call leaves half awake belongs to the operator from then on
  std::string client;   // the operator, as Caller::name
};

// An operator's wake-up that waits for room or is being carried out.
struct OperatorWake {
  WakeUpCall call;
  bool was_held = false;  // OperatorMarks::held_asleep before the wake-up came
  int64_t id = 0;
  std::optional<absl::StatusOr<TransitionReport>> result;  // set: the wake-up has ended
};

class OperatorMarks {
 public:
  // The marks that an operator's sleep has replaced, until the sleep has ended.
  struct SleepUnderWay {
    bool backs_up = false;  // the sleep takes host memory for the weights
    bool was_staged = false;
    bool was_held = false;
  };

  // `holds_requests`: an operator's sleep holds although requests come (SleepArrivals other than kWake).
  explicit OperatorMarks(bool holds_requests) : holds_requests_(holds_requests) {}

  // No request wakes the model.
  bool held_asleep() const { return held_asleep_; }
  // Operators have put the model to sleep, or woken the model, in part.
  bool staged() const { return staged_; }
  // Only an operator may take away the memory that the model has now.
  bool holds_memory() const { return staged_ || num_holds_ > 0 || wanted_.has_value(); }
  // The operator's wake-up whose caller waits; null: none.
  const OperatorWake* wanted() const { return wanted_.has_value() ? &*wanted_ : nullptr; }
  bool is_promised_backup() const { return num_promised_backups_ > 0; }
  int64_t promised_kept_bytes() const { return promised_kept_bytes_; }
  // The model sleeps at level 1 because an operator has asked for that level.
  bool level_is_asked() const { return level_is_asked_; }

  // The model is in `state`: a model that was half awake may be awake by now, and then nothing holds it
  // asleep.
  void EndStage(EngineState state);
  // A change of the weights has failed, so no memory is kept for the next step of the change.
  void GiveUpStage() { staged_ = false; }
  // The model is awake, so an operator's wish for level 1 has ended.
  void NoteAwake() { level_is_asked_ = false; }

  // An operator's call needs the model's memory until Release.
  void Hold() { ++num_holds_; }
  void Release() { --num_holds_; }

  // An operator's sleep begins. A sleep of some tags leaves the other tags mapped: a hold keeps their memory
  // meanwhile.
  SleepUnderWay BeginSleep(bool backs_up);
  // Promises host memory to the sleep that has begun: for its backup, and `kept_bytes` for KV blocks (not
  // set: KV blocks take what they need).
  void Promise(const SleepUnderWay& sleep, std::optional<int64_t> kept_bytes);
  // `slept`: the sleep at `level` has ended well. `engine`: in its present state.
  void EndSleep(const SleepUnderWay& sleep, bool slept, int level, const Engine& engine);

  // An operator's wake-up waits from now on. No other wake-up may wait.
  void Want(const WakeUpCall& call);
  // A wake-up was carried out for `wake`, which may have lost its caller since. `engine`: in its present
  // state.
  void NoteResult(const OperatorWake& wake, const absl::StatusOr<TransitionReport>& result,
                  const Engine& engine);
  // The caller of the wake-up has the result, and waits no longer. `engine`: in its present state.
  void EndWake(const Engine& engine);

 private:
  void NoteStage(bool was_held, const EngineStats& stats);

  const bool holds_requests_;
  std::optional<OperatorWake> wanted_;
  int64_t last_wake_id_ = 0;
  bool held_asleep_ = false;
  bool staged_ = false;
  int64_t num_holds_ = 0;            // operators' calls that need the model's memory
  int num_promised_backups_ = 0;     // operators' sleeps at level 1 that are under way
  int64_t promised_kept_bytes_ = 0;  // host memory for KV blocks of such a sleep
  bool level_is_asked_ = false;
};

}  // namespace somnus
