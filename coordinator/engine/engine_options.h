#pragma once
// The options of an EngineLoop. Plain data.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "base/running_clock.h"
#include "coordinator/engine/kv_event_log.h"
#include "coordinator/engine/prefix_book.h"
#include "coordinator/engine/queue_room.h"
#include "coordinator/request/request.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/weight_labels.h"
#include "coordinator/residency/weights.h"
#include "coordinator/scheduler/scheduler.h"

namespace somnus {

struct EngineOptions {
  SchedulerOptions scheduler;
  bool async_scheduling = true;     // step k+1 is sent before the reply to step k is handled
  bool keep_kv_on_sleep = false;    // what fits into the host tier outlives a sleep of level 1
  bool keeps_cached_blocks = true;  // the prefix cache, too, and not only the blocks of open requests
  int64_t kv_block_bytes = 0;       // of one block of the KV cache, over all ranks
  int32_t world_size = 1;           // ranks
  bool wake_self_check = false;     // nothing is served before the logits are as before the sleep
  bool batch_invariant = false;     // of the workers: --batch-invariant
  QueueLimits queue;
  PinLimits pins;
  absl::Duration step_timeout = absl::Seconds(300);
  // A step under way for longer makes Health say so; it is still waited for, until its deadline.
  absl::Duration step_stall = absl::Seconds(60);
  // How long requests wait for weights that no wake-up brings, after a change that failed or a recovery.
  absl::Duration stale_weights_timeout = absl::Minutes(1);
  absl::Duration hang_timeout = absl::Seconds(4);  // no step has less (step_deadline.h), but for step_timeout
  int32_t max_recoveries_per_request = 3;
  int32_t max_recoveries = 10;  // of the group, in a row without a token, within recovery_window
  absl::Duration recovery_window = absl::Minutes(10);
  int32_t vocab_size = 0;                       // ids in prompts and replies are below it
  Residency residency;                          // what the ranks hold at the start
  int32_t num_mapped_blocks = 0;                // likewise, as of Held
  Weights weights;                              // likewise
  std::function<absl::Time()> now = absl::Now;  // for what is shown: arrivals, metrics
  MonotonicClock running_now = RunningNow;      // for how long a step is under way: see base/running_clock.h
  MonotonicClock monotonic_now = MonotonicNow;  // for what is decided: deadlines, steps, draining
  std::string log_name;                         // "replica 1: ", at the front of log lines; empty: none
  std::shared_ptr<KvEventLog> kv_events;        // of the prefix cache; null: nobody wants them
  std::shared_ptr<WeightLabels>
      weight_labels;                  // of the weights of all replicas; null: weights have no labels
  int32_t data_parallel_rank = 0;     // of a replica, in its events
  int32_t max_viewed_requests = 200;  // in a picture of the loop (engine_view.h)
  // Of an engine that is a replica: takes the open requests, with their progress, when the group is lost or
  // restarted, or has failed, so that they go on elsewhere. It is called on the loop thread, after the state
  // has changed, and must not block; the engine forgets them. Null: they wait for the recovery.
  std::function<void(std::vector<EngineRequest>)> hand_over;
};

}  // namespace somnus
