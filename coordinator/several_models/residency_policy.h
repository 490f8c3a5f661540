#pragma once
// Which of several models that share device memory are awake: who wakes and who sleeps next, and why.
//
// A pure function of what is known about the models, without a thread and without a clock: the same views
// give the same plan. Whoever drives it carries out the plan and asks again when a request came or ended,
// when a transition ended, and at the time that the plan names.
//
// What holds whatever the models do:
// - Device memory is never promised twice: a model wakes only when what it needs is free beside all that is
//   resident, being mapped or not released yet.
// - A model that loads, wakes or is pinned is not put to sleep. One with open requests is, when its turn is
//   over: under kFifo it finishes them first, unless the model for which it makes room has waited for longer
//   than max_wait; under kSlo it is preempted, between two steps.
// - A model that has woken stays for a multiple of what a switch takes, so that switches take a bounded share
//   of the time however requests alternate.
// - Weights that no checkpoint has are not lost: such a model sleeps at level 1, or keeps its place where the
//   host has no room for its backup.
// - Host memory is never promised twice either (host_memory.h). Weights come first; what they leave is for
//   the KV blocks of models that fall asleep. A sleep at level 1 that an operator has asked for is never made
//   one at level 2.
// - A model that has had no request for its idle_sleep falls asleep though nobody waits for its memory.
// - Whoever has waited for longer than max_wait comes before all others, whatever their priority, and no
//   later one takes what it waits for: every model that fits wakes in the end.

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
  kDraining,       // finishes what is open and then falls asleep; what arrives meanwhile waits
  kFallingAsleep,  // releases its device memory
  kAsleep,
  kDeepening,  // asleep; goes from level 1 to level 2
  kWaking,
  kFailed,
};

// What the policy knows of one model.
struct ModelView {
  ModelState state = ModelState::kLoading;
  int level = 0;             // of the sleep: reached, or being reached
  bool pinned = false;       // is kept awake
  bool held_asleep = false;  // by an operator: no request wakes it
  bool held_awake = false;   // by an operator, as far as it is awake: it is not put to sleep
  int priority = 0;          // waiting models with a higher one wake first, within max_wait
  // Bytes over all ranks.
  int64_t device_bytes = 0;         // of device memory while it is awake
  int64_t resident_bytes = 0;       // of device memory now; counts while it is asleep or has failed
  int64_t idle_bytes = 0;           // of them, while it is asleep: that a sleep of all tags would release
  int64_t backup_bytes = 0;         // of host memory that a sleep at level 1 takes for the weights
  int64_t held_bytes = 0;           // of host memory, now; may be retained while it is awake
  int64_t held_kv_bytes = 0;        // the part of them that is for KV blocks
  int64_t kv_bytes = 0;             // of host memory that KV blocks would take, if it slept at level 1 now
  int64_t max_kept_bytes = 0;       // while it falls asleep: of the decision, or of the operator's sleep
  bool is_promised_backup = false;  // an operator's sleep at level 1 is under way, in whatever state
  bool level_is_asked = false;      // it sleeps at level 1 because an operator has asked for that level
  bool only_copy = false;           // level 2 would lose its weights, so it sleeps at level 1 or not at all
  bool stay_told = false;           // kStay has come since it woke
  bool prefetched = false;          // kPrefetch has come since it fell asleep
  bool reads_backup = false;        // also of level 1 the wake-up reads the weights from the checkpoint
  absl::Duration idle_sleep = absl::InfiniteDuration();  // without a request for so long it falls asleep
  int idle_level = 1;                                    // so deep, unless level 2 would lose its weights
  int32_t open_requests = 0;
  MonotonicTime waiting_since = absl::InfiniteDuration();  // not awake: since when have requests waited
  MonotonicTime deadline = absl::InfiniteDuration();       // kSlo: when a request needs its next token
  MonotonicTime last_used;                                 // a request came or ended
  MonotonicTime awake_since;                               // later than now: a sleep has failed, until then
  MonotonicTime retry_at = -absl::InfiniteDuration();      // no wake-up before that: the last one has failed
  absl::Duration switch_time;                              // of a sleep and a wake-up, as measured
  // kSlo: of one decode step, and between two tokens of a request as its client wants them. 0: unknown.
  absl::Duration step_time;
  absl::Duration tpot_target;
};

enum class ResidencyPolicy {
  kFifo,  // what is open at a model is finished before another model takes its place
  kSlo,   // weighted round robin: models are preempted so that all meet the times that their clients want
};

// Bytes of a budget that does not limit.
inline constexpr int64_t kNoBudget = std::numeric_limits<int64_t>::max();

struct ResidencyOptions {
  ResidencyPolicy policy = ResidencyPolicy::kFifo;
  int64_t device_memory_budget = kNoBudget;
  int64_t host_memory_budget = kNoBudget;  // for backups, and for KV blocks that outlive a sleep
  // A model stays awake for this long at least, and for stay_factor times its switch_time. No flags: they
  // bound the share of the time that switches take, by what switches were measured to take; turn and max_wait
  // say how long others wait.
  absl::Duration minimum_stay = absl::Milliseconds(100);
  double stay_factor = 2;
  // So long may a model with open requests run while others wait; kSlo gives shorter turns where tpot_target
  // asks for them.
  absl::Duration turn = absl::Seconds(2);
  absl::Duration max_wait = absl::Seconds(20);
  // kSlo: the share of the device's time that turns are laid out for. No flag: the rest is for what is not
  // measured, and targets say what turns are for.
  double utilization = 0.95;
};

enum class ResidencyAction {
  kWake,
  kSleepIfIdle,  // at `level`, unless a request has come meanwhile
  kDrain,        // finish what is open, then sleep at `level`
  kPreempt,      // sleep at `level` after the step under way; what is open goes on after the next wake-up
  kDropBackup,   // from level 1 to level 2
  kPrefetch,     // sleeps on; its weights are brought from the disk to the host, for the wake-up that is next
  kRelease,      // sleeps in part, or with stale weights: what is mapped is released at `level`
  kStay,         // keeps its memory, though another model waits for it; told once
};

enum class ResidencyReason {
  kRequestsWait,   // wake
  kPinned,         // wake
  kIdle,           // sleep: the least recently used that has nothing to do
  kTurnIsOver,     // sleep: others wait
  kWaitedTooLong,  // sleep: another model has waited for longer than max_wait
  kHostMemory,     // the backup gives way to one that was used more recently
  kHalfAwake,      // release: nothing can be computed with what is mapped
  kOnlyCopy,       // stay: level 2 would lose its weights, and the host has no room for their backup
  kUnused,         // sleep: it has had no request for its idle_sleep
};

// "wake", "preempt", ...; "requests_wait", "turn_is_over", ...: the names that metrics and logs use.
const char* ResidencyActionName(ResidencyAction action);
const char* ResidencyReasonName(ResidencyReason reason);

struct ResidencyDecision {
  ResidencyAction action = ResidencyAction::kWake;
  ResidencyReason reason = ResidencyReason::kRequestsWait;
  int model = 0;
  int level = 0;      // of a sleep
  int for_model = 0;  // that gets the memory; the model itself where it wakes
  // Of a sleep at level 1: of host memory for KV blocks, at most. What has no room is computed again.
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

// Of the budget, what no model takes, or will when its transition has ended.
int64_t FreeDeviceBytes(const ResidencyOptions& options, const std::vector<ModelView>& models);

// The first model that could never be awake beside those that are pinned.
std::optional<int> FindModelThatNeverFits(const ResidencyOptions& options,
                                          const std::vector<ModelView>& models);

}  // namespace somnus
