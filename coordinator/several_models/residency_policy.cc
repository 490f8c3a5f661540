#include "coordinator/several_models/residency_policy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "coordinator/several_models/host_memory.h"

namespace somnus {
namespace {

bool IsAsleep(const ModelView& model) {
  return model.state == ModelState::kAsleep || model.state == ModelState::kDeepening;
}

// The device memory that the model takes until the transition that is under way has ended.
int64_t DeviceBytes(const ModelView& model) {
  if (IsAsleep(model) || model.state == ModelState::kFailed) return model.resident_bytes;
  return std::max(model.device_bytes, model.resident_bytes);
}

// The bytes that the model's sleep, or the rest of the sleep, would release.
int64_t Releasable(const ModelView& model) { return IsAsleep(model) ? model.idle_bytes : DeviceBytes(model); }

bool WillRelease(const ModelView& model) {
  return model.state == ModelState::kDraining || model.state == ModelState::kFallingAsleep;
}

// The share of the time that the model must run for the requests to get tokens as the clients want.
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
      if (MakeRoom(waiter)) continue;
      if (!blocked_.has_value()) blocked_ = waiter;
      if (IsOverdue(waiter)) break;
    }
    PrefetchNext(waiters);
    TellStays();
    SleepUnused();
    for (ResidencyDecision& decision : plan_.decisions) KeepBlocks(&decision);
    return std::move(plan_);
  }

 private:
  void LookAgainAt(MonotonicTime time) {
    if (time > now_) plan_.look_again_at = std::min(plan_.look_again_at, time);
  }

  MonotonicTime OverdueAt(int model) const { return models_[model].waiting_since + options_.max_wait; }
  bool IsOverdue(int model) const { return now_ >= OverdueAt(model); }

  // The weights would be lost: there is no room for a backup.
  bool MustStay(int index) const {
    const ModelView& model = models_[index];
    return model.only_copy && MissingForBackup(model) > MostForBackup(options_, models_, index);
  }

  // Whether the model would fit if every model that may sleep slept.
  bool CanFit(int index) const {
    int64_t left = options_.device_memory_budget;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool stays =
          model.pinned || model.held_awake || model.state == ModelState::kFailed || MustStay(i);
      if (i == index) continue;
      if (stays || IsAsleep(model)) left -= DeviceBytes(model);
      if (!stays && IsAsleep(model)) left += model.idle_bytes;
    }
    return models_[index].device_bytes <= left;
  }

  // Among models with late tokens no model comes first for being later.
  MonotonicTime Deadline(const ModelView& model) const { return std::max(now_, model.deadline); }

  // The models that want to wake, in the order of their wake-ups.
  std::vector<int> Waiters() {
    std::vector<int> waiters;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool wants = model.open_requests > 0 || model.pinned;
      if (model.state != ModelState::kAsleep || model.held_asleep || !wants) continue;
      LookAgainAt(model.retry_at);
      if (now_ < model.retry_at) continue;
      if (CanFit(i)) {
        waiters.push_back(i);
      } else if (!blocked_.has_value()) {
        blocked_ = i;
      }
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

  // Prefetches for the next model to wake. Only for that model: models after it would come too late to
  // profit.
  void PrefetchNext(const std::vector<int>& waiters) {
    const auto next =
        std::find_if(waiters.begin(), waiters.end(), [&](int waiter) { return !wakes_[waiter]; });
    if (next == waiters.end() || models_[*next].prefetched) return;
    const int level = models_[*next].level;
    if (level != 2 && !models_[*next].reads_backup) return;
    plan_.decisions.push_back({ResidencyAction::kPrefetch, WakeReason(*next), *next, level, *next});
  }

  // While a model is blocked: tells of each mapped model that must stay, because the model has the only copy
  // of its weights.
  void TellStays() {
    for (int i = 0; blocked_.has_value() && i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool is_mapped = model.state == ModelState::kAwake || model.idle_bytes > 0;
      if (!is_mapped || model.pinned || model.stay_told || !MustStay(i)) continue;
      plan_.decisions.push_back({ResidencyAction::kStay, ResidencyReason::kOnlyCopy, i, 0, *blocked_});
    }
  }

  void SleepUnused() {
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      const ModelView& model = models_[i];
      const bool idle = model.state == ModelState::kAwake && model.open_requests == 0;
      const bool held = model.pinned || model.held_awake || model.held_asleep;
      if (!idle || held || leaves_[i] || MustStay(i)) continue;
      const MonotonicTime due = std::max(model.last_used, model.awake_since) + model.idle_sleep;
      LookAgainAt(due);
      if (now_ < due) continue;
      const bool deep = model.idle_level == 2 && !model.only_copy;
      const std::optional<int> level = deep ? std::optional(2) : ChooseLevel(i, i);
      if (!level.has_value()) continue;
      leaves_[i] = true;
      plan_.decisions.push_back({ResidencyAction::kSleepIfIdle, ResidencyReason::kUnused, i, *level, i});
    }
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
    // The model keeps the memory that the model holds, and the memory that was promised when the drain began.
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

  // Preempts models that drain, once `waiter` has waited for their open requests for long enough.
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
  // model has to compute the tokens that its requests want in a whole cycle: turn = Share * cycle. The cycle
  // follows from the rule that turns and switches fill `utilization` of the time.
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
    if (model.pinned || model.held_awake || leaves_[index] || MustStay(index)) return std::nullopt;
    const bool half_awake = model.state == ModelState::kAsleep && model.idle_bytes > 0 && !wakes_[index];
    if (half_awake && index != waiter) {
      if (now_ >= model.awake_since) return ResidencyAction::kRelease;
      LookAgainAt(model.awake_since);  // the last release has failed
    }
    if (model.state != ModelState::kAwake) return std::nullopt;
    const bool idle = model.open_requests == 0;
    const MonotonicTime leaves_at = model.awake_since + (idle ? Stay(model) : Turn(model));
    if (now_ < leaves_at) {
      LookAgainAt(leaves_at);
      return std::nullopt;
    }
    // A paused engine refuses to sleep as an idle one: no engine ends a pause by itself.
    if (idle) return model.paused ? ResidencyAction::kPreempt : ResidencyAction::kSleepIfIdle;
    if (IsOverdue(waiter)) return ResidencyAction::kPreempt;
    if (model.priority > models_[waiter].priority) {
      LookAgainAt(OverdueAt(waiter));
      return std::nullopt;
    }
    return options_.policy == ResidencyPolicy::kSlo ? ResidencyAction::kPreempt : ResidencyAction::kDrain;
  }

  // Finds models that together release `missing` bytes, and puts all of these models to sleep or none.
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
      // The least urgent model is preempted first.
      const absl::Duration urgency = slo ? -Deadline(model) : absl::ZeroDuration();
      return std::tuple(candidate.action != ResidencyAction::kRelease, model.open_requests > 0,
                        model.priority, urgency, model.last_used, candidate.model);
    };
    std::sort(candidates.begin(), candidates.end(),
              [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
    int64_t surplus = -missing;
    size_t num_taken = 0;
    while (surplus < 0 && num_taken < candidates.size())
      surplus += Releasable(models_[candidates[num_taken++].model]);
    if (surplus < 0) return false;
    // The last candidate may be so large that some smaller candidates before may stay. The model that is used
    // most stays first.
    for (size_t i = num_taken; i-- > 0;) {
      const int64_t bytes = Releasable(models_[candidates[i].model]);
      if (bytes <= surplus) {
        surplus -= bytes;
        continue;
      }
      Sleep(candidates[i].model, candidates[i].action, waiter);
    }
    return true;
  }

  ResidencyReason SleepReason(int index, ResidencyAction action, int waiter) const {
    if (models_[index].open_requests == 0 && action != ResidencyAction::kRelease)
      return ResidencyReason::kIdle;
    if (action == ResidencyAction::kRelease) return ResidencyReason::kHalfAwake;
    return IsOverdue(waiter) ? ResidencyReason::kWaitedTooLong : ResidencyReason::kTurnIsOver;
  }

  void Sleep(int index, ResidencyAction action, int waiter) {
    leaves_[index] = true;
    supply_ += Releasable(models_[index]);
    const std::optional<int> level = ChooseLevel(index, waiter);
    if (!level.has_value()) return;
    plan_.decisions.push_back({action, SleepReason(index, action, waiter), index, *level, waiter});
  }

  // The backups that give way to the backup of `model`: backups of models that were used less recently, or of
  // any models where the weights of `model` would be lost.
  std::optional<std::vector<int>> ChooseDrops(const ModelView& model, int64_t missing) const {
    std::vector<int> older, all;
    for (int i = 0; i < static_cast<int>(models_.size()); ++i) {
      if (leaves_[i] || wakes_[i] || !CanDropBackup(models_[i])) continue;
      all.push_back(i);
      const bool is_older = models_[i].last_used < model.last_used || model.only_copy;
      if (MayDropBackup(models_[i]) && is_older) older.push_back(i);
    }
    auto drops = ChooseBackupsToDrop(models_, std::move(older), missing);
    if (drops.has_value() || !model.only_copy) return drops;
    return ChooseBackupsToDrop(models_, std::move(all), missing);
  }

  // The level at which the model may fall asleep now: 1 if there is room for its backup, or if backups of
  // models that were used less recently make room. Nullopt: not now; such backups are being dropped first.
  std::optional<int> ChooseLevel(int index, int waiter) {
    const ModelView& model = models_[index];
    const int64_t needed = MissingForBackup(model);
    if (needed == 0) return 1;
    if (needed <= host_free_) {
      host_free_ -= needed;
      return 1;
    }
    const auto drops = ChooseDrops(model, needed - host_free_ - host_releasing_);
    // Where the weights would be lost the model waits: another model takes the host memory that there was.
    if (!drops.has_value()) return model.only_copy ? std::nullopt : std::optional(2);
    for (const int drop : *drops) DropBackup(drop, waiter);
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
  // Device memory that no model holds, memory that will be released, and how much of both is not promised.
  int64_t free_;
  int64_t releasing_ = 0;
  int64_t supply_ = 0;
  int64_t host_free_;
  int64_t host_releasing_ = 0;
  double busy_share_ = 0;
  absl::Duration busy_switch_time_;
  std::vector<bool> leaves_;    // by a decision of this plan
  std::vector<bool> wakes_;     // by a decision of this plan
  std::optional<int> blocked_;  // the first model that waits, and for which nothing was decided
  ResidencyPlan plan_;
};

}  // namespace

ResidencyPlan PlanResidency(const ResidencyOptions& options, MonotonicTime now,
                            const std::vector<ModelView>& models) {
  return Planner(options, now, models).Run();
}

int64_t FreeDeviceBytes(const ResidencyOptions& options, const std::vector<ModelView>& models) {
  int64_t free = options.device_memory_budget;
  for (const ModelView& model : models) free -= DeviceBytes(model);
  return std::max<int64_t>(0, free);
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
