#include "coordinator/residency/residency_policy.h"

#include <algorithm>
#include <tuple>

namespace somnus {
namespace {

bool IsAsleep(const ModelView& model) {
  return model.state == ModelState::kAsleep || model.state == ModelState::kDeepening;
}

// What the model takes of the device until the transition that it is in has ended.
int64_t DeviceBytes(const ModelView& model) {
  if (IsAsleep(model) || model.state == ModelState::kFailed) return model.resident_bytes;
  return std::max(model.device_bytes, model.resident_bytes);
}

bool WillRelease(const ModelView& model) {
  return model.state == ModelState::kDraining || model.state == ModelState::kFallingAsleep;
}

// What it takes of the host until the transition that it is in has ended.
int64_t HostBytes(const ModelView& model) {
  if (!WillRelease(model) || model.level != 1) return model.held_bytes;
  const int64_t held = model.held_bytes - model.held_kv_bytes;
  return std::max(held, model.backup_bytes) + std::max(model.held_kv_bytes, model.max_kept_bytes);
}

int64_t FreeHostBytes(const ResidencyOptions& options, const std::vector<ModelView>& models) {
  int64_t free = options.host_memory_budget;
  if (free == kNoBudget) return free;
  for (const ModelView& model : models) free -= HostBytes(model);
  return free;
}

// Of the host, that a sleep at level 1 takes for the weights beyond what it holds. A backup that was retained
// is whole, also where it is compressed and smaller than the weights.
int64_t MissingForBackup(const ModelView& model) {
  return model.held_bytes > model.held_kv_bytes ? 0 : model.backup_bytes;
}

// The share of the time that the model must run for its requests to get their tokens as they want them.
double Share(const ModelView& model) {
  if (model.tpot_target <= absl::ZeroDuration()) return 0;
  return absl::FDivDuration(model.step_time, model.tpot_target);
}

class Planner {
 public:
  Planner(const ResidencyOptions& options, MonotonicTime now, const std::vector<ModelView>& models)
      : options_(options),
        now_(now),
        models_(models),
        free_(options.device_memory_budget),
        host_free_(FreeHostBytes(options, models)),
        leaves_(models.size(), false),
        wakes_(models.size(), false) {
    for (const ModelView& model : models_) {
      free_ -= DeviceBytes(model);
      if (WillRelease(model)) releasing_ += DeviceBytes(model);
      if (model.state == ModelState::kDeepening) host_releasing_ += model.held_bytes;
      if (model.open_requests == 0) continue;
      busy_share_ += Share(model);
      busy_switch_time_ += model.switch_time;
    }
    supply_ = free_ + releasing_;
  }

  ResidencyPlan Run() {
    const std::vector<int> waiters = Waiters();
    for (const int waiter : waiters) {
      if (!MakeRoom(waiter) && IsOverdue(waiter)) break;
    }
    PrefetchNext(waiters);
    for (ResidencyDecision& decision : plan_.decisions) KeepBlocks(&decision);
    return std::move(plan_);
  }

 private:
  void LookAgainAt(MonotonicTime time) {
    if (time > now_) plan_.look_again_at = std::min(plan_.look_again_at, time);
  }

  MonotonicTime OverdueAt(int model) const { return models_[model].waiting_since + options_.max_wait; }
  bool IsOverdue(int model) const { return now_ >= OverdueAt(model); }

  // Whether it would fit if every model that may sleep slept.
  bool CanFit(int index) const {
    int64_t left = options_.device_memory_budget;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool stays = model.pinned || IsAsleep(model) || model.state == ModelState::kFailed;
      if (i != index && stays) left -= DeviceBytes(model);
    }
    return models_[index].device_bytes <= left;
  }

  // Among those whose tokens are late already nobody comes first for being later.
  MonotonicTime Deadline(const ModelView& model) const { return std::max(now_, model.deadline); }

  // Those that want to wake, in the order in which they do.
  std::vector<int> Waiters() {
    std::vector<int> waiters;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool wants = model.open_requests > 0 || model.pinned;
      if (model.state != ModelState::kAsleep || model.held_asleep || !wants) continue;
      LookAgainAt(model.retry_at);
      if (now_ >= model.retry_at && CanFit(i)) waiters.push_back(i);
    }
    const auto rank = [&](int i) {
      const ModelView& model = models_[i];
      const bool overdue = IsOverdue(i);
      const MonotonicTime since = model.waiting_since;
      const MonotonicTime deadline = options_.policy == ResidencyPolicy::kSlo ? Deadline(model) : since;
      return std::tuple(!overdue, overdue ? 0 : -model.priority, overdue ? since : deadline, since, i);
    };
    std::sort(waiters.begin(), waiters.end(), [&](int a, int b) { return rank(a) < rank(b); });
    return waiters;
  }

  int64_t NeededBytes(int model) const {
    return std::max<int64_t>(0, models_[model].device_bytes - models_[model].resident_bytes);
  }

  // Of those that do not wake yet the first one. Its weights are for no other one's turn, so there is no
  // sense in more.
  void PrefetchNext(const std::vector<int>& waiters) {
    const auto next =
        std::find_if(waiters.begin(), waiters.end(), [&](int waiter) { return !wakes_[waiter]; });
    if (next == waiters.end() || models_[*next].level != 2 || models_[*next].prefetched) return;
    plan_.decisions.push_back({ResidencyAction::kPrefetch, WakeReason(*next), *next, 2, *next});
  }

  // After all backups of weights have got their share.
  void KeepBlocks(ResidencyDecision* decision) {
    const bool sleeps = decision->action == ResidencyAction::kSleepIfIdle ||
                        decision->action == ResidencyAction::kDrain ||
                        decision->action == ResidencyAction::kPreempt;
    const ModelView& model = models_[decision->model];
    if (!sleeps || decision->level != 1 || model.kv_bytes == 0) return;
    decision->max_kept_bytes = kNoBudget;
    if (options_.host_memory_budget == kNoBudget) return;
    // What it holds, and what it was promised when it began to drain, is its own.
    const int64_t own =
        WillRelease(model) ? std::max(model.held_kv_bytes, model.max_kept_bytes) : model.held_kv_bytes;
    decision->max_kept_bytes = std::clamp<int64_t>(own + host_free_, 0, model.kv_bytes);
    host_free_ -= std::max<int64_t>(0, decision->max_kept_bytes - own);
  }

  ResidencyReason WakeReason(int model) const {
    return models_[model].open_requests > 0 ? ResidencyReason::kRequestsWait : ResidencyReason::kPinned;
  }

  // Returns false when there is no way yet.
  bool MakeRoom(int waiter) {
    const int64_t needed = NeededBytes(waiter);
    if (supply_ < needed && !PutToSleep(waiter, needed - supply_)) return false;
    supply_ -= needed;
    if (free_ >= needed) {
      free_ -= needed;
      wakes_[waiter] = true;
      plan_.decisions.push_back({ResidencyAction::kWake, WakeReason(waiter), waiter, 0, waiter});
      return true;
    }
    HurryDrains(waiter);
    return true;
  }

  // What is open at models that drain has been waited for long enough.
  void HurryDrains(int waiter) {
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      if (models_[i].state != ModelState::kDraining || leaves_[i]) continue;
      if (!IsOverdue(waiter)) {
        LookAgainAt(OverdueAt(waiter));
        continue;
      }
      leaves_[i] = true;
      plan_.decisions.push_back(
          {ResidencyAction::kPreempt, ResidencyReason::kWaitedTooLong, i, models_[i].level, waiter});
    }
  }

  absl::Duration Stay(const ModelView& model) const {
    return std::max(options_.minimum_stay, options_.stay_factor * model.switch_time);
  }

  // A turn of each model with open requests, and the switches between them, make up a cycle. In its turn a
  // model has to compute what its requests want in a whole cycle: turn = Share * cycle. That turns and
  // switches fill `utilization` of the time gives the cycle.
  absl::Duration Turn(const ModelView& model) const {
    const absl::Duration longest = std::max(options_.turn, Stay(model));
    const double share = Share(model);
    const double left = options_.utilization - busy_share_;
    if (options_.policy == ResidencyPolicy::kFifo || share <= 0 || left <= 0) return longest;
    return std::clamp(share / left * busy_switch_time_, Stay(model), longest);
  }

  // How `model` may make room for `waiter` now. Nullopt: not now, or never.
  std::optional<ResidencyAction> MayLeave(int index, int waiter) {
    const ModelView& model = models_[index];
    if (model.state != ModelState::kAwake || model.pinned || leaves_[index]) return std::nullopt;
    const bool idle = model.open_requests == 0;
    const MonotonicTime leaves_at = model.awake_since + (idle ? Stay(model) : Turn(model));
    if (now_ < leaves_at) {
      LookAgainAt(leaves_at);
      return std::nullopt;
    }
    if (idle) return ResidencyAction::kSleepIfIdle;
    if (IsOverdue(waiter)) return ResidencyAction::kPreempt;
    if (model.priority > models_[waiter].priority) {
      LookAgainAt(OverdueAt(waiter));
      return std::nullopt;
    }
    return options_.policy == ResidencyPolicy::kSlo ? ResidencyAction::kPreempt : ResidencyAction::kDrain;
  }

  // Finds models that together release `missing` bytes, and puts all of them to sleep or none.
  bool PutToSleep(int waiter, int64_t missing) {
    struct Candidate {
      int model;
      ResidencyAction action;
    };
    std::vector<Candidate> candidates;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      if (const auto action = MayLeave(i, waiter)) candidates.push_back({i, *action});
    }
    const auto rank = [&](const Candidate& candidate) {
      const ModelView& model = models_[candidate.model];
      const bool slo = options_.policy == ResidencyPolicy::kSlo;
      // The least urgent of those that are preempted.
      const absl::Duration urgency = slo ? -Deadline(model) : absl::ZeroDuration();
      return std::tuple(model.open_requests > 0, model.priority, urgency, model.last_used, candidate.model);
    };
    std::sort(candidates.begin(), candidates.end(),
              [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
    int64_t surplus = -missing;
    size_t num_taken = 0;
    while (surplus < 0 && num_taken < candidates.size())
      surplus += DeviceBytes(models_[candidates[num_taken++].model]);
    if (surplus < 0) return false;
    // Of small and large ones the last may suffice without some before it; whoever is used most stays first.
    for (size_t i = num_taken; i-- > 0;) {
      const int64_t bytes = DeviceBytes(models_[candidates[i].model]);
      if (bytes <= surplus) {
        surplus -= bytes;
        continue;
      }
      Sleep(candidates[i].model, candidates[i].action, waiter);
    }
    return true;
  }

  void Sleep(int index, ResidencyAction action, int waiter) {
    leaves_[index] = true;
    supply_ += DeviceBytes(models_[index]);
    const std::optional<int> level = ChooseLevel(index, waiter);
    if (!level.has_value()) return;
    const bool idle = action == ResidencyAction::kSleepIfIdle;
    const auto reason = idle                ? ResidencyReason::kIdle
                        : IsOverdue(waiter) ? ResidencyReason::kWaitedTooLong
                                            : ResidencyReason::kTurnIsOver;
    plan_.decisions.push_back({action, reason, index, *level, waiter});
  }

  // The level to which the model may fall asleep now, 1 if there is room for its backup, or if those of
  // models that were used less recently make room. Nullopt: these are being dropped first.
  std::optional<int> ChooseLevel(int index, int waiter) {
    const ModelView& model = models_[index];
    const int64_t needed = MissingForBackup(model);
    if (needed == 0) return 1;
    if (needed <= host_free_) {
      host_free_ -= needed;
      return 1;
    }
    std::vector<int> older;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& other = models_[i];
      const bool may_drop = other.state == ModelState::kAsleep && other.level == 1 && !leaves_[i];
      if (may_drop && other.held_bytes > 0 && other.open_requests == 0 && other.last_used < model.last_used)
        older.push_back(i);
    }
    std::sort(older.begin(), older.end(), [&](int a, int b) {
      return std::tuple(models_[a].last_used, a) < std::tuple(models_[b].last_used, b);
    });
    int64_t missing = needed - host_free_ - host_releasing_;
    size_t num_dropped = 0;
    while (missing > 0 && num_dropped < older.size()) missing -= models_[older[num_dropped++]].held_bytes;
    if (missing > 0) return 2;
    for (size_t i = 0; i < num_dropped; ++i) DropBackup(older[i], waiter);
    host_releasing_ += host_free_ - needed;
    host_free_ = 0;
    return std::nullopt;
  }

  void DropBackup(int index, int waiter) {
    leaves_[index] = true;
    host_releasing_ += models_[index].held_bytes;
    plan_.decisions.push_back({ResidencyAction::kDropBackup, ResidencyReason::kHostMemory, index, 2, waiter});
  }

  const ResidencyOptions& options_;
  const MonotonicTime now_;
  const std::vector<ModelView>& models_;
  // Device memory that nobody holds, and how much of it and of what will be released is not promised.
  int64_t free_;
  int64_t releasing_ = 0;
  int64_t supply_ = 0;
  int64_t host_free_;
  int64_t host_releasing_ = 0;
  double busy_share_ = 0;
  absl::Duration busy_switch_time_;
  std::vector<bool> leaves_;  // a decision of this plan
  std::vector<bool> wakes_;   // likewise
  ResidencyPlan plan_;
};

}  // namespace

const char* ResidencyActionName(ResidencyAction action) {
  switch (action) {
    case ResidencyAction::kWake:
      return "wake";
    case ResidencyAction::kSleepIfIdle:
      return "sleep_if_idle";
    case ResidencyAction::kDrain:
      return "drain";
    case ResidencyAction::kPreempt:
      return "preempt";
    case ResidencyAction::kDropBackup:
      return "drop_backup";
    case ResidencyAction::kPrefetch:
      return "prefetch";
  }
  return "unknown";
}

const char* ResidencyReasonName(ResidencyReason reason) {
  switch (reason) {
    case ResidencyReason::kRequestsWait:
      return "requests_wait";
    case ResidencyReason::kPinned:
      return "pinned";
    case ResidencyReason::kIdle:
      return "idle";
    case ResidencyReason::kTurnIsOver:
      return "turn_is_over";
    case ResidencyReason::kWaitedTooLong:
      return "waited_too_long";
    case ResidencyReason::kHostMemory:
      return "host_memory";
  }
  return "unknown";
}

ResidencyPlan PlanResidency(const ResidencyOptions& options, MonotonicTime now,
                            const std::vector<ModelView>& models) {
  return Planner(options, now, models).Run();
}

int64_t MaxKeptBytes(const ResidencyOptions& options, const std::vector<ModelView>& models, int model) {
  const int64_t free = FreeHostBytes(options, models);
  if (free == kNoBudget) return kNoBudget;
  return std::max<int64_t>(0, free - MissingForBackup(models[model]) + models[model].held_kv_bytes);
}

std::optional<int> FindModelThatNeverFits(const ResidencyOptions& options,
                                          const std::vector<ModelView>& models) {
  int64_t left = options.device_memory_budget;
  for (int i = 0; i < static_cast<int>(models.size()); ++i) {
    if (!models[i].pinned) continue;
    if (models[i].device_bytes > left) return i;
    left -= models[i].device_bytes;
  }
  for (int i = 0; i < static_cast<int>(models.size()); ++i) {
    if (!models[i].pinned && models[i].device_bytes > left) return i;
  }
  return std::nullopt;
}

}  // namespace somnus
