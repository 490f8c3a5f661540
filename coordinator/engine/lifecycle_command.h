#pragma once
// A lifecycle call of a client, from its arrival at the engine loop until its caller gets the result, and the
// calls of the executor that it leads to. Plain state; the loop thread's once it has arrived.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "coordinator/engine/caller.h"
#include "coordinator/engine/engine.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/transition_report.h"
#include "coordinator/residency/weights.h"

namespace somnus {

struct LifecycleCommand {
  enum class Kind {
    kSleep,
    kWakeUp,
    kPause,
    kResume,
    kResetPrefixCache,
    kRestart,
    kRevive,
    kReload,
    kUpdate,
    kSelfCheck,
    kResizeKvCache,
    kEndWaiting
  };
  Kind kind = Kind::kSleep;
  SleepSpec spec;                     // of kSleep; of kWakeUp its tags
  SleepMode mode = SleepMode::kKeep;  // kKeep once the wait of kWait is over
  bool clear_cache = false;           // of kPause: see PauseRequest; of kResetPrefixCache: preempt_running
  bool only_if_idle = false;          // of kSleep
  bool spares_only_copy = false;      // of kSleep: see SleepRequest
  bool force = false;                 // of kSleep: see SleepRequest
  std::optional<int64_t> max_kept_bytes;               // of kSleep: see SleepRequest
  bool keeps_nothing = false;                          // of kSleep: the host had no memory for blocks to keep
  bool for_arrivals = false;                           // of kWakeUp: declined during a pause
  bool restart_workers = true;                         // of kRevive
  bool ends_pause = false;                             // of kWakeUp, also where tags stay asleep
  std::optional<bool> load_weights;                    // of kWakeUp: see Engine::WakeUp
  std::string path;                                    // of kReload
  int64_t weights_version = 0;                         // of kReload and kUpdate; 0: the next version
  std::string update_id;                               // of kUpdate
  std::string port_token;                              // of kUpdate: see WeightsRequest
  std::shared_ptr<const Caller> caller;                // null: the server itself
  absl::Status given_up;                               // an error: an operator has ended the command
  std::vector<std::function<void()>> on_end;           // of the operators' AbortCall, called after `reply`
  std::vector<v1::WeightChunk> tensors;                // of kUpdate: see WeightsRequest
  std::shared_ptr<std::vector<v1::UpdatePort>> ports;  // of kUpdate: filled in before `begun`
  std::function<void()> begun;            // of kUpdate: chunks may be sent; not called where it ends before
  std::shared_ptr<WeightsChange> change;  // of kReload and kUpdate: filled in before a reply that is ok
  int32_t num_blocks = 0;                 // of kResizeKvCache: as asked for, and at most the cache's
  int32_t limit_before = 0;               // of kResizeKvCache: of the block manager
  std::shared_ptr<int32_t> num_mapped;    // of kResizeKvCache: filled in before a reply that is ok
  std::optional<Weights> revived;         // of kRevive: awake, with these weights of the awake replicas
  bool revived_asleep = false;            // of kRevive without `revived`: see Engine::Revive
  // Called exactly once, on the loop thread, after the state has changed.
  std::function<void(absl::StatusOr<TransitionReport>)> reply;
  TransitionReport woken;  // of kWakeUp: what it has done, while the self-check is under way
  absl::Status damage;     // likewise: why the sleep that is under way is its end
  absl::Status error;      // of kEndWaiting: of the requests
  Held before;             // when it began
  MonotonicTime began;
  int num_interruptions = 0;  // losses of the group after which it had to begin again

  // Its client has left.
  bool Abandoned() const { return caller != nullptr && caller->has_left(); }
  const char* Name() const {
    constexpr const char* kNames[] = {"sleep",
                                      "wake_up",
                                      "pause",
                                      "resume",
                                      "reset_prefix_cache",
                                      "restart",
                                      "restart",
                                      "reload_weights",
                                      "update_weights",
                                      "self-check",
                                      "a change of the KV cache's size",
                                      "end_waiting"};
    return kNames[static_cast<int>(kind)];
  }
  bool ChangesWeights() const { return kind == Kind::kReload || kind == Kind::kUpdate; }
  // Whether it ends another one's wait for open requests.
  bool EndsWaits() const {
    if (kind == Kind::kSleep || kind == Kind::kPause || ChangesWeights())
      return mode != SleepMode::kWait && !only_if_idle;
    return kind == Kind::kResume || (kind == Kind::kWakeUp && !for_arrivals);
  }
};

// A call of the executor for a command.
struct LifecycleCall {
  int64_t id;
  SleepSpec spec;              // level 0: a wake-up
  bool weights_stale = false;  // of a wake-up, as Residency::Woke
  bool of_weights = false;     // it changes the weights
  bool of_check = false;       // it is a self-check
  bool drops_kept = false;     // it gives up what outlives a sleep, and changes no tag
  MonotonicTime began;         // of a self-check
  int32_t num_blocks = 0;      // of one that resizes the KV cache; 0: it does not
};

}  // namespace somnus
