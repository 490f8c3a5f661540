#include "tools/simulator/model_switching.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace somnus {
namespace {

constexpr MonotonicTime kNever = absl::InfiniteDuration();

class Simulation {
 public:
  Simulation(const std::vector<SimulatedModel>& models, const std::vector<SimulatedRequest>& requests,
             const SwitchingPolicy& policy, const SwitchingOptions& options)
      : requests_(requests), policy_(policy), options_(options), num_tokens_(requests.size(), 0) {
    outcome_.requests.resize(requests.size());
    num_open_ = requests.size();
    for (const SimulatedModel& spec : models) {
      Model& model = models_.emplace_back();
      model.spec = spec;
      model.view.state = ModelState::kAsleep;
      model.view.level = 2;
      model.view.pinned = spec.pinned;
      model.view.priority = spec.priority;
      model.view.device_bytes = spec.device_bytes;
      model.view.backup_bytes = spec.backup_bytes;
      model.view.switch_time = spec.sleep + spec.wake_up;
      model.view.step_time = spec.step;
      model.view.tpot_target = spec.tpot_target;
    }
  }

  SwitchingOutcome Run() {
    while (num_open_ > 0) {
      now_ = NextEvent();
      if (now_ == kNever) break;
      changed_ = now_ >= look_again_at_;
      Arrive();
      for (int i = 0; i < NumModels(); ++i) {
        EndStep(i);
        EndTransition(i);
      }
      if (changed_) Decide();
      for (Model& model : models_) BeginStep(&model);
      NoteMemory();
    }
    outcome_.stuck = num_open_ > 0;
    outcome_.end = now_;
    return std::move(outcome_);
  }

 private:
  struct Model {
    SimulatedModel spec;
    ModelView view;
    std::vector<int> open;   // requests that the next step computes
    std::vector<int> held;   // that came while the model drained
    std::vector<int> batch;  // of the step under way
    MonotonicTime step_end = kNever;
    MonotonicTime transition_end = kNever;
    MonotonicTime prefetch_end = kNever;
  };

  int NumModels() const { return static_cast<int>(models_.size()); }

  MonotonicTime NextEvent() const {
    MonotonicTime next = look_again_at_;
    if (next_request_ < requests_.size()) next = std::min(next, requests_[next_request_].arrival);
    for (const Model& model : models_) next = std::min({next, model.step_end, model.transition_end});
    return next;
  }

  void Arrive() {
    for (; next_request_ < requests_.size() && requests_[next_request_].arrival <= now_; ++next_request_) {
      Model& model = models_[requests_[next_request_].model];
      model.view.last_used = now_;
      const bool held = model.view.state == ModelState::kDraining;
      (held ? model.held : model.open).push_back(static_cast<int>(next_request_));
      if (model.view.state != ModelState::kAwake)
        model.view.waiting_since = std::min(model.view.waiting_since, now_);
      changed_ = true;
    }
  }

  void BeginStep(Model* model) {
    const ModelState state = model->view.state;
    const bool computes = state == ModelState::kAwake || state == ModelState::kDraining;
    if (!computes || model->open.empty() || model->step_end != kNever) return;
    const auto shares = std::count_if(models_.begin(), models_.end(), [](const Model& other) {
      return other.view.state == ModelState::kAwake && !other.open.empty();
    });
    absl::Duration time = model->spec.step;
    for (const int request : model->open) {
      if (num_tokens_[request] == 0) time += model->spec.prefill;
    }
    model->batch = model->open;
    model->step_end = now_ + std::max<int64_t>(1, shares) * time;
  }

  void EndStep(int index) {
    Model& model = models_[index];
    if (model.step_end > now_) return;
    model.step_end = kNever;
    for (const int request : model.batch) GiveToken(request, &model);
    std::erase_if(model.open,
                  [&](int request) { return num_tokens_[request] == requests_[request].num_tokens; });
    if (model.view.state == ModelState::kDraining && model.open.empty()) BeginSleep(index);
  }

  void GiveToken(int request, Model* model) {
    RequestOutcome& outcome = outcome_.requests[request];
    const SimulatedRequest& spec = requests_[request];
    if (now_ <= Deadline(request, *model)) ++outcome.num_tokens_in_time;
    if (num_tokens_[request]++ == 0) outcome.ttft = now_ - spec.arrival;
    if (num_tokens_[request] < spec.num_tokens) return;
    outcome.latency = now_ - spec.arrival;
    model->view.last_used = now_;
    --num_open_;
    changed_ = true;
  }

  // The deadline of the request's next token.
  MonotonicTime Deadline(int request, const Model& model) const {
    return requests_[request].arrival + model.spec.ttft_target +
           num_tokens_[request] * model.spec.tpot_target;
  }

  void BeginSleep(int index) {
    Model& model = models_[index];
    if (model.view.state == ModelState::kAwake || model.view.state == ModelState::kDraining)
      outcome_.shortest_stay = std::min(outcome_.shortest_stay, now_ - model.view.awake_since);
    model.view.state = ModelState::kFallingAsleep;
    if (!model.open.empty()) {
      ++outcome_.num_preemptions;
      model.view.waiting_since = std::min(model.view.waiting_since, now_);
    }
    outcome_.switching += model.spec.sleep;
    const MonotonicTime stopped = model.step_end == kNever ? now_ : model.step_end;
    model.transition_end = stopped + model.spec.sleep;
    changed_ = true;
  }

  void EndTransition(int index) {
    Model& model = models_[index];
    if (model.transition_end > now_) return;
    model.transition_end = kNever;
    changed_ = true;
    ModelView& view = model.view;
    if (view.state == ModelState::kWaking) return EndWakeUp(index);
    if (view.state == ModelState::kDeepening) view.level = 2;
    view.prefetched = false;
    model.prefetch_end = kNever;
    view.held_bytes = view.level == 1 ? view.backup_bytes : 0;
    view.state = ModelState::kAsleep;
    view.resident_bytes = 0;
    model.open.insert(model.open.end(), model.held.begin(), model.held.end());
    model.held.clear();
  }

  void EndWakeUp(int index) {
    ModelView& view = models_[index].view;
    if (options_.wake_up_fails && options_.wake_up_fails(index)) {
      view.state = ModelState::kAsleep;
      view.resident_bytes = 0;
      view.retry_at = now_ + options_.retry_after;
      return;
    }
    view.state = ModelState::kAwake;
    view.level = 0;
    view.held_bytes = 0;
    view.awake_since = now_;
    view.waiting_since = kNever;
  }

  void Decide() {
    std::vector<ModelView> views;
    for (Model& model : models_) {
      model.view.open_requests = static_cast<int32_t>(model.open.size() + model.held.size());
      model.view.deadline = kNever;
      for (const int request : model.open)
        model.view.deadline = std::min(model.view.deadline, Deadline(request, model));
      for (const int request : model.held)
        model.view.deadline = std::min(model.view.deadline, Deadline(request, model));
      views.push_back(model.view);
    }
    const ResidencyPlan plan = policy_(now_, views);
    look_again_at_ = plan.look_again_at;
    for (const ResidencyDecision& decision : plan.decisions) Begin(decision);
  }

  void Begin(const ResidencyDecision& decision) {
    Model& model = models_[decision.model];
    ModelView& view = model.view;
    const int level_before = view.level;
    view.level = decision.action == ResidencyAction::kWake ? view.level : decision.level;
    switch (decision.action) {
      case ResidencyAction::kWake: {
        const absl::Duration time = level_before == 2 ? WakeUpDiscarded(model) : model.spec.wake_up;
        view.state = ModelState::kWaking;
        view.resident_bytes = view.device_bytes;
        model.transition_end = now_ + time;
        outcome_.switching += time;
        ++outcome_.num_wake_ups;
        return;
      }
      case ResidencyAction::kPrefetch:
        view.prefetched = true;
        model.prefetch_end = now_ + model.spec.prefetch;
        ++outcome_.num_prefetches;
        return;
      case ResidencyAction::kRelease:
      case ResidencyAction::kStay:
        return;  // all tags sleep together, and checkpoints have all weights
      case ResidencyAction::kDropBackup:
        view.level = 1;  // until the backup is dropped
        view.state = ModelState::kDeepening;
        model.transition_end = now_ + model.spec.sleep;
        return;
      case ResidencyAction::kDrain:
        view.state = ModelState::kDraining;
        if (model.open.empty()) BeginSleep(decision.model);
        return;
      case ResidencyAction::kSleepIfIdle:
      case ResidencyAction::kPreempt:
        return BeginSleep(decision.model);
    }
  }

  absl::Duration WakeUpDiscarded(const Model& model) const {
    const bool prefetched = model.prefetch_end <= now_;
    return prefetched ? std::min(model.spec.wake_up_prefetched, model.spec.wake_up_discarded)
                      : model.spec.wake_up_discarded;
  }

  void NoteMemory() {
    int64_t device = 0, host = 0;
    for (const Model& model : models_) {
      device += model.view.resident_bytes;
      const bool copies = model.view.state == ModelState::kFallingAsleep && model.view.level == 1;
      host += copies ? model.view.backup_bytes : model.view.held_bytes;
    }
    outcome_.most_device_bytes = std::max(outcome_.most_device_bytes, device);
    outcome_.most_host_bytes = std::max(outcome_.most_host_bytes, host);
  }

  const std::vector<SimulatedRequest>& requests_;
  const SwitchingPolicy& policy_;
  const SwitchingOptions& options_;
  std::vector<Model> models_;
  std::vector<int> num_tokens_;  // of each request, computed
  size_t num_open_;              // requests that have not ended, or not come
  size_t next_request_ = 0;
  MonotonicTime now_;
  MonotonicTime look_again_at_ = kNever;
  bool changed_ = false;  // something that the policy may answer
  SwitchingOutcome outcome_;
};

}  // namespace

SwitchingOutcome SimulateSwitching(const std::vector<SimulatedModel>& models,
                                   const std::vector<SimulatedRequest>& requests,
                                   const SwitchingPolicy& policy, const SwitchingOptions& options) {
  return Simulation(models, requests, policy, options).Run();
}

ResidencyPlan PlanNaiveLru(int64_t device_memory_budget, const std::vector<ModelView>& models) {
  ResidencyPlan plan;
  int64_t free = device_memory_budget, releasing = 0;
  std::vector<int> idle, waiting;
  for (int i = 0; i < static_cast<int>(models.size()); ++i) {
    const ModelView& model = models[i];
    if (model.state != ModelState::kAsleep) free -= model.device_bytes;
    if (model.state == ModelState::kFallingAsleep) releasing += model.device_bytes;
    if (model.state == ModelState::kAwake && model.open_requests == 0) idle.push_back(i);
    if (model.state == ModelState::kAsleep && model.open_requests > 0) waiting.push_back(i);
  }
  std::sort(waiting.begin(), waiting.end(), [&](int a, int b) {
    return std::tuple(models[a].waiting_since, a) < std::tuple(models[b].waiting_since, b);
  });
  std::sort(idle.begin(), idle.end(), [&](int a, int b) {
    return std::tuple(models[a].last_used, a) < std::tuple(models[b].last_used, b);
  });
  size_t victim = 0;
  for (const int waiter : waiting) {
    const int64_t needed = models[waiter].device_bytes;
    while (free + releasing < needed && victim < idle.size()) {
      const int leaves = idle[victim++];
      releasing += models[leaves].device_bytes;
      plan.decisions.push_back({ResidencyAction::kSleepIfIdle, ResidencyReason::kIdle, leaves, 1, waiter});
    }
    if (free < needed) break;
    free -= needed;
    plan.decisions.push_back({ResidencyAction::kWake, ResidencyReason::kRequestsWait, waiter, 0, waiter});
  }
  return plan;
}

}  // namespace somnus
