// The flags about sleep, and about times and failures, for the table of the coordinator's flags.
#include <utility>
#include <vector>

#include "base/request_bounds.h"
#include "coordinator/flags/choice_names.h"
#include "coordinator/flags/flag_setters.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {

namespace {

// The flags of the host tier of the KV cache.
std::vector<Flag> SwapSpaceFlags(Flags* f) {
  const auto set_swap_space = [f](const std::string& value) { return SetSwapSpace(value, f); };
  return {
      Flag::Custom("swap-space", "BYTES", "4GiB", set_swap_space,
                   "host memory of each worker for KV blocks: of requests that were preempted "
                   "(--preemption), those that a sleep keeps, and of cached prefixes "
                   "(--prefix-cache-on-host); taken when it is needed; a bare number up to 1024 counts "
                   "GiB"),
      Flag::Bytes("swap-space-ahead", &f->swap_space_ahead_bytes, 0, int64_t{1} << 40,
                  "of it: pinned memory that a worker on a GPU takes beside its steps before one of them "
                  "swaps blocks out; a step that finds too little has them computed again, and the worker "
                  "takes as much as that step needed"),
      Flag::OneOf(
          "prefix-cache-on-host", &f->engine.scheduler.host_prefix_caching, HostPrefixCachingNames(),
          "cached prefixes go to host memory, as far as --swap-space has room, before others take their "
          "blocks, and come back for prompts that begin with them; auto: where copying costs less than "
          "computing again, by the times of steps"),
      Flag::Int("prefix-cache-step-blocks", &f->engine.scheduler.max_step_stores, 1, 65536,
                "blocks of cached prefixes that one step copies to host memory"),
  };
}

}  // namespace

FlagGroup SleepFlags(Flags* f) {
  FlagGroup group = {
      "Sleep",
      {
          Flag::Switch("enable-sleep-mode", &f->enable_sleep_mode,
                       "for vLLM's command lines: every engine can sleep"),
          Flag::OneOf("backup", &f->backup,
                      {{"auto", v1::BACKUP_POLICY_UNSPECIFIED},
                       {"retain", v1::BACKUP_POLICY_RETAIN},
                       {"release", v1::BACKUP_POLICY_RELEASE},
                       {"file", v1::BACKUP_POLICY_FILE},
                       {"compress", v1::BACKUP_POLICY_COMPRESS}},
                      "where a level-1 sleep keeps the weights: in host memory, also after the wake-up "
                      "(auto on GPUs) or until then (auto on CPUs), in the checkpoint's own files or in one "
                      "of --spill-dir, or compressed in host memory, also after the wake-up"),
          Flag::Text(
              "spill-dir", &f->spill_dir,
              "directory of --backup=file on each worker's host, on a disk with room for the weights; the "
              "files have no names, and end with the workers. Without it the checkpoint is the backup")
              .Shows("DIR"),
          Flag::OneOf(
              "sleep-arrivals", &f->auto_sleep.arrivals, SleepArrivalsNames(),
              "a request that comes while the engine sleeps waits until it is woken, is refused (503, "
              "FAILED_PRECONDITION), or wakes it"),
          Flag::Time("idle-sleep-s", &f->auto_sleep.idle_sleep, absl::ZeroDuration(), kLongestTimeFlag,
                     "an engine that has had no request for that long goes to sleep, and the next request "
                     "wakes it; 0: never")
              .Alias("idle-sleep"),
          Flag::Int("idle-sleep-level", &f->auto_sleep.idle_level, kMinSleepLevel, kMaxSleepLevel,
                    "how deep it sleeps then"),
          Flag::Int("max-wake-up-tries", &f->auto_sleep.retry.max_tries, 0, 1000,
                    "wake-ups for requests, one after the other, that may fail before the requests that wait "
                    "end with the error (503), and later ones until the next try; one that only lacks memory "
                    "does not count; 0: they are tried as long as requests wait"),
          Flag::Switch("keep-kv-on-sleep", &f->keep_kv_on_sleep,
                       "a level-1 sleep keeps what the KV cache holds, as far as --swap-space and "
                       "--host-memory-budget have room: open requests and cached prefixes are not computed "
                       "again")
              .Default("false; of several models: open requests alone"),
          Flag::Switch("wake-self-check", &f->engine.wake_self_check,
                       "after a wake-up a fixed prompt is computed, and nothing is served unless its logits "
                       "are bit for bit what they were before the sleep (on CPUs, and with "
                       "--batch-invariant)"),
      }};
  for (Flag& flag : SwapSpaceFlags(f)) group.flags.push_back(std::move(flag));
  return group;
}

FlagGroup TimeFlags(Flags* f) {
  return {
      "Times and failures",
      {
          Flag::Time("step-timeout", &f->engine.step_timeout, kShortestTimeFlag, kLongestTimeFlag,
                     "a step without a reply for that long is a failure, whatever steps take otherwise")
              .Alias("step-timeout-s"),
          Flag::Time(
              "step-stall", &f->engine.step_stall, kShortestTimeFlag, kLongestTimeFlag,
              "while a step is under way for longer, or a call holds up requests for longer, /health says "
              "so")
              .Alias("step-stall-s"),
          Flag::Time("hang-timeout", &f->engine.hang_timeout, absl::Seconds(1), kLongestTimeFlag,
                     "a worker without heartbeats for that long is lost; a step, and every call to workers, "
                     "has at least that long, and more where such steps take longer")
              .Alias("hang-timeout-s")
              .Alias("heartbeat-timeout")
              .Alias("heartbeat-timeout-s"),
          Flag::Time(
              "liveness-timeout", &f->liveness_timeout, absl::ZeroDuration(), kLongestTimeFlag,
              "/livez fails once a thread that the coordinator serves with has given no sign of life "
              "for that long, and for twice --hang-timeout, beyond what it waits for a step; 0: never"),
          Flag::Time(
              "stale-weights-timeout", &f->engine.stale_weights_timeout, absl::ZeroDuration(),
              kLongestTimeFlag,
              "how long requests wait for weights that a failed change or a lost worker has made stale, "
              "and that only a reload or an update brings; then they are refused; 0: as long as their "
              "clients do"),
          Flag::Int("max-recoveries-per-request", &f->engine.max_recoveries_per_request, 0, 1000,
                    "a request that was in a step at that many failures of the workers, and got no further, "
                    "runs alone from then on, and ends with an error when they fail again"),
          Flag::Int("max-recoveries", &f->engine.max_recoveries, 0, 1 << 20,
                    "recoveries of the workers within --recovery-window that led to no token; the next "
                    "failure is final"),
          Flag::Time("recovery-window", &f->engine.recovery_window, kShortestTimeFlag, kLongestTimeFlag,
                     "see --max-recoveries")
              .Alias("recovery-window-s"),
          Flag::Time("replica-retry-pause", &f->replica_retry_pause, absl::ZeroDuration(), absl::Hours(1),
                     "until a replica that has failed is tried again, while another one serves, or one of "
                     "several models; it doubles with every failure, up to 10m; 0: never"),
          Flag::Time("register-timeout", &f->register_timeout, kShortestTimeFlag, kLongestTimeFlag,
                     "how long to wait for local workers")
              .Alias("register-timeout-s"),
          Flag::Time("replacement-timeout", &f->replacement_timeout, kShortestTimeFlag, kLongestTimeFlag,
                     "how long to wait for another worker in the place of a lost one that runs elsewhere")
              .Alias("replacement-timeout-s"),
          Flag::Time("worker-grace", &f->worker_grace, absl::Milliseconds(1), kLongestTimeFlag,
                     "how long local workers wait for a coordinator that is gone, with --run-dir")
              .Alias("worker-grace-s"),
          Flag::Time("shutdown-timeout", &f->shutdown_timeout, absl::ZeroDuration(), kLongestTimeFlag,
                     "how long open requests may go on at the end"),
          Flag::Switch("stay-after-failure", &f->stay_after_failure,
                       "when the engine has failed: go on and refuse requests, instead of ending with exit "
                       "code 1"),
      }};
}

}  // namespace somnus
