#pragma once
// Which of several models that share device memory are awake: which model wakes and which sleeps next, and
// why.
//
// A pure function of the models' views, without a thread and without a clock: the same views give the same
// plan. The driver carries out the plan, and asks again when a request came or ended, when a transition
// ended, and at the time that the plan names.
//
// Rules that hold in every case:
// - Device memory is never promised twice: a model wakes only when the memory that the model needs is free
//   beside all memory that is resident, being mapped or not released yet.
// - A model that loads, wakes or is pinned is not put to sleep. A model with open requests is put to sleep
//   when the model's turn is over: under kFifo the model finishes the open requests first, unless the model
//   that gets the room has waited for longer than max_wait; under kSlo the model is preempted, between two
//   steps.
// - A model that has woken stays for a multiple of the time of a switch, so that switches take a bounded
//   share of the time however requests alternate.
// - Weights that no checkpoint has are not lost: a model with such weights sleeps at level 1, or keeps its
//   place where the host has no room for its backup.
// - Host memory is never promised twice either (host_memory.h). Weights come first; the rest is for the KV
//   blocks of models that fall asleep. A sleep at level 1 that an operator has asked for never becomes a
//   sleep at level 2.
// - A model that has had no request for its idle_sleep falls asleep though no other model waits for the
//   memory.
// - A model that has waited for longer than max_wait comes before models that have waited less, also before
//   models of a higher priority, and no later model takes the memory that the overdue model waits for: every
//   model that fits wakes in the end.

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/monotonic.h"

namespace somnus {

enum class ModelState {
  kLoading,
  kAwake,
  kDraining,       // finishes the open requests and then falls asleep; requests that arrive meanwhile wait
  kFallingAsleep,  // releases its device memory
  kAsleep,
  kDeepening,  // asleep; goes from level 1 to level 2
  kWaking,
  kFailed,
};

// The policy's view of one model.
struct ModelView {
  ModelState state = ModelState::kLoading;
  int level = 0;             // of the sleep that is reached or being reached
  bool pinned = false;       // is kept awake
  bool held_asleep = false;  // by an operator: no request wakes the model
  bool held_awake = false;   // by an operator, as far as the model is awake: the model is not put to sleep
  bool paused = false;       // by an operator: an awake model computes nothing, and gives way like a busy one
  int priority = 0;          // waiting models of a higher priority wake first, within max_wait
  // Bytes over all ranks.
  int64_t device_bytes = 0;    // device memory while the model is awake
  int64_t resident_bytes = 0;  // device memory now; counts while the model is asleep or has failed
  int64_t idle_bytes =
      0;  // of a model that is asleep: the resident bytes that a sleep of all tags would release
  int64_t backup_bytes = 0;        // host memory that a sleep at level 1 takes for the weights
  bool compresses_backup = false;  // the backup of all ranks may be smaller than backup_bytes
  int64_t held_bytes = 0;          // host memory now; may be retained while the model is awake
  int64_t held_kv_bytes = 0;       // the part of held_bytes that is for KV blocks
  int64_t adapter_bytes = 0;       // host memory that copies of adapters take, beside held_bytes
  int64_t kv_bytes = 0;  // host memory that KV blocks would take, if the model fell asleep at level 1 now
  int64_t max_kept_bytes = 0;       // of the decision or the operator's sleep, while the model falls asleep
  bool is_promised_backup = false;  // an operator's sleep at level 1 is under way, in any state
  bool level_is_asked = false;  // the model sleeps at level 1 because an operator has asked for that level
  bool only_copy = false;     // level 2 would lose the weights, so the model sleeps at level 1 or not at all
  bool stay_told = false;     // kStay has come since the model woke
  bool prefetched = false;    // kPrefetch has come since the model fell asleep
  bool reads_backup = false;  // from level 1, too, the wake-up reads the weights from the checkpoint
  absl::Duration idle_sleep =
      absl::InfiniteDuration();  // the time without a request after which the model falls asleep
  int idle_level = 1;            // the level of that sleep, unless level 2 would lose the weights
  int32_t open_requests = 0;
  MonotonicTime waiting_since = absl::InfiniteDuration();  // not awake: since when have requests waited
  MonotonicTime deadline = absl::InfiniteDuration();       // kSlo: when a request needs its next token
  MonotonicTime last_used;                                 // a request came or ended
  MonotonicTime awake_since;  // later than now: a sleep has failed, and none begins before this time
  MonotonicTime retry_at =
      -absl::InfiniteDuration();  // no wake-up begins before this time: the last wake-up has failed
  absl::Duration switch_time;     // the time of a sleep and a wake-up, as measured
  // kSlo: the time of one decode step, and the time between two tokens of a request that its client wants. 0:
  // unknown.
  absl::Duration step_time;
  absl::Duration tpot_target;
};

enum class ResidencyPolicy {
  kFifo,  // a model finishes its open requests before the next model takes the model's place
  kSlo,   // weighted round robin: models are preempted so that all models meet the times that clients want
};

// Bytes of a budget that does not limit.
inline constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max();

struct ResidencyOptions {
  ResidencyPolicy policy = ResidencyPolicy::kFifo;
  int64_t device_memory_budget = kNoBudget;
  int64_t host_memory_budget = kNoBudget;  // for backups, and for KV blocks that outlive a sleep
  // A model stays awake for this long at least, and for stay_factor times its switch_time. No flags: both
  // options bound the share of the time that switches take, by the measured time of switches; turn and
  // max_wait say how long other models wait.
  absl::Duration minimum_stay = absl::Milliseconds(100);
  double stay_factor = 2;
  // How long a model with open requests may run while other models wait. kSlo gives shorter turns where
  // tpot_target asks for shorter turns.
  absl::Duration turn = absl::Seconds(2);
  absl::Duration max_wait = absl::Seconds(20);
  // kSlo: the share of the device's time that turns are laid out for. No flag: the rest is for times that are
  // not measured, and targets say how long turns are.
  double utilization = 0.95;
};

enum class ResidencyAction {
  kWake,
  kSleepIfIdle,  // at `level`, unless a request has come meanwhile
  kDrain,        // finish the open requests, then sleep at `level`
  kPreempt,      // sleep at `level` after the step under way; open requests go on after the next wake-up
  kDropBackup,   // from level 1 to level 2
  kPrefetch,     // sleep on; the weights are brought from the disk to the host, for the next wake-up
  kRelease,  // of a model that sleeps in part, or with stale weights: mapped memory is released at `level`
  kStay,     // keep the memory, though another model waits for that memory; told once
};

enum class ResidencyReason {
  kRequestsWait,   // wake
  kPinned,         // wake
  kIdle,           // sleep: the least recently used model that has nothing to do
  kTurnIsOver,     // sleep: other models wait
  kWaitedTooLong,  // sleep: another model has waited for longer than max_wait
  kHostMemory,     // the backup gives way to the backup of a model that was used more recently
  kHalfAwake,      // release: nothing can be computed with the mapped memory
  kOnlyCopy,       // stay: level 2 would lose the weights, and the host has no room for a backup
  kUnused,         // sleep: the model has had no request for its idle_sleep
};

// "wake", "preempt", ...; "requests_wait", "turn_is_over", ...: the names that metrics and logs use.
const char* ResidencyActionName(ResidencyAction action);
const char* ResidencyReasonName(ResidencyReason reason);

struct ResidencyDecision {
  ResidencyAction action = ResidencyAction::kWake;
  ResidencyReason reason = ResidencyReason::kRequestsWait;
  int model = 0;
  int level = 0;      // of a sleep
  int for_model = 0;  // the model that gets the memory; `model` itself where that model wakes
  // For a sleep at level 1: the most host memory for KV blocks. Blocks that have no room are computed again.
  int64_t max_kept_bytes = 0;

  bool operator==(const ResidencyDecision&) const = default;
};

struct ResidencyPlan {
  std::vector<ResidencyDecision> decisions;  // all may begin at once
  // Without an event before, nothing has to be decided until then.
  MonotonicTime look_again_at = absl::InfiniteDuration();
};

// Models are named by their index.
ResidencyPlan PlanResidency(const ResidencyOptions& options, MonotonicTime now,
                            const std::vector<ModelView>& models);

// The part of the budget that no model takes, or will take when the model's transition has ended.
int64_t FreeDeviceBytes(const ResidencyOptions& options, const std::vector<ModelView>& models);

// The first model that could never be awake beside the pinned models.
std::optional<int> FindModelThatNeverFits(const ResidencyOptions& options,
                                          const std::vector<ModelView>& models);

}  // namespace somnus
