#include "tools/simulator/serving_simulation.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/replicas/router.h"
#include "tools/simulator/contiguous_engine.h"
#include "tools/simulator/paged_engine.h"

namespace somnus {
namespace {

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

Quantiles QuantilesOf(std::vector<float>* values) {
  if (values->empty()) return {};
  double sum = 0;
  for (const float value : *values) sum += value;
  std::sort(values->begin(), values->end());
  const auto at = [&](double share) { return (*values)[static_cast<size_t>(share * (values->size() - 1))]; };
  return {sum / static_cast<double>(values->size()), at(0.5), at(0.99)};
}

// Chooses an engine for each request.
class EngineRouter {
 public:
  EngineRouter(const SimulationOptions& options)
      : options_(options),
        load_(options.num_engines, 0),
        affinity_(options.engine.block_size,
                  options.num_engines * options.engine.kv_slots / options.engine.block_size) {}

  int Choose(const LoadRequest& request) {
    switch (options_.router) {
      case RouterKind::kRoundRobin:
        return static_cast<int>(next_++ % options_.num_engines);
      case RouterKind::kLeastTokens:
        return static_cast<int>(std::min_element(load_.begin(), load_.end()) - load_.begin());
      case RouterKind::kPrefixAffinity:
        return ChooseByPrefix(request);
    }
    return 0;
  }
  void AddLoad(int engine, int64_t tokens) { load_[engine] += tokens; }

 private:
  int ChooseByPrefix(const LoadRequest& request) {
    const PrefixChain chain = MakePrefixChain(PromptTokens(request), "", options_.engine.block_size);
    std::vector<Router::Candidate> candidates;
    for (int engine = 0; engine < options_.num_engines; ++engine)
      candidates.push_back({engine, load_[engine]});
    const int engine = affinity_.Choose(chain, candidates);
    affinity_.Note(chain, engine);
    return engine;
  }

  const SimulationOptions& options_;
  std::vector<int64_t> load_;
  Router affinity_;
  int64_t next_ = 0;
};

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const EngineFactory& make_engine, RequestSource* source)
      : options_(options), source_(source), router_(options) {
    for (int32_t i = 0; i < options.num_engines; ++i) engines_.push_back({make_engine(), {}});
  }

  ServingOutcome Run() {
    next_ = source_->Next();
    while (next_.has_value() || !steps_.empty()) {
      const bool arrives = next_.has_value() && (steps_.empty() || next_->arrival_s <= steps_.top().first);
      if (arrives) {
        now_ = std::max(now_, next_->arrival_s);
        Arrive(*next_);
        next_ = source_->Next();
        continue;
      }
      const auto [time, engine] = steps_.top();
      steps_.pop();
      now_ = time;
      EndStep(engine);
      BeginStep(engine);
    }
    SOMNUS_CHECK(open_.empty());
    return Summarize();
  }

 private:
  struct Engine {
    std::unique_ptr<SimulatedEngine> engine;
    bool computes = false;
  };
  struct OpenRequest {
    LoadRequest request;
    int engine = 0;
  };
  // Sums over time.
  struct KvSums {
    double live = 0, future = 0, surplus = 0, rounding = 0, total = 0, unshared = 0, held = 0, running = 0,
           seconds = 0;
  };

  void Arrive(const LoadRequest& request) {
    const int index = router_.Choose(request);
    if (!engines_[index].engine->Add(request).ok()) {
      ++outcome_.refused;
      return;
    }
    router_.AddLoad(index, request.input);
    open_[request.id] = {request, index};
    if (!engines_[index].computes) BeginStep(index);
  }

  void BeginStep(int index) {
    Engine& engine = engines_[index];
    const std::optional<StepLoad> load = engine.engine->BeginStep();
    engine.computes = load.has_value();
    if (!load.has_value()) return;
    ++outcome_.num_steps;
    const double seconds = options_.cost.StepSeconds(*load);
    SOMNUS_CHECK(seconds > 0);
    steps_.emplace(now_ + seconds, index);
    if (next_.has_value()) NoteKvUse(*engine.engine, seconds);
  }

  void NoteKvUse(const SimulatedEngine& engine, double seconds) {
    const KvUse use = engine.kv_use();
    sums_.live += seconds * static_cast<double>(use.live);
    sums_.future += seconds * static_cast<double>(use.future);
    sums_.surplus += seconds * static_cast<double>(use.surplus);
    sums_.rounding += seconds * static_cast<double>(use.rounding);
    sums_.total += seconds * static_cast<double>(use.total);
    sums_.unshared += seconds * static_cast<double>(use.unshared_slots);
    sums_.held += seconds * static_cast<double>(use.held_slots);
    sums_.running += seconds * static_cast<double>(engine.num_running());
    sums_.seconds += seconds;
  }

  void EndStep(int index) {
    StepResult result;
    engines_[index].engine->EndStep(&result);
    for (const int64_t id : result.first_tokens)
      ttft_.push_back(static_cast<float>(now_ - open_.at(id).request.arrival_s));
    for (const int64_t id : result.ended) {
      const auto ended = open_.find(id);
      const LoadRequest& request = ended->second.request;
      latency_.push_back(static_cast<float>((now_ - request.arrival_s) / request.output));
      output_tokens_ += request.output;
      router_.AddLoad(ended->second.engine, -request.input);
      open_.erase(ended);
    }
  }

  ServingOutcome Summarize() {
    outcome_.requests = static_cast<int64_t>(latency_.size());
    outcome_.normalized_latency_s = QuantilesOf(&latency_);
    outcome_.ttft_s = QuantilesOf(&ttft_);
    outcome_.simulated_s = now_;
    for (const Engine& engine : engines_) {
      outcome_.num_preemptions += engine.engine->num_preemptions();
      outcome_.num_swap_preemptions += engine.engine->num_swap_preemptions();
    }
    outcome_.output_tokens_per_s = Share(static_cast<double>(output_tokens_), now_);
    const double reserved = sums_.live + sums_.future + sums_.surplus + sums_.rounding;
    outcome_.kv_utilization = Share(sums_.live, reserved);
    outcome_.live = Share(sums_.live, sums_.total);
    outcome_.future = Share(sums_.future, sums_.total);
    outcome_.surplus = Share(sums_.surplus, sums_.total);
    outcome_.rounding = Share(sums_.rounding, sums_.total);
    outcome_.running_requests = Share(sums_.running, sums_.seconds);
    outcome_.sharing_saved = sums_.unshared > 0 ? 1 - sums_.held / sums_.unshared : 0;
    return std::move(outcome_);
  }

  const SimulationOptions& options_;
  RequestSource* const source_;
  EngineRouter router_;
  std::vector<Engine> engines_;
  // The ends of the steps under way; of equal times the lowest engine first.
  using StepEnd = std::pair<double, int>;
  std::priority_queue<StepEnd, std::vector<StepEnd>, std::greater<StepEnd>> steps_;
  std::optional<LoadRequest> next_;
  absl::flat_hash_map<int64_t, OpenRequest> open_;
  std::vector<float> latency_, ttft_;
  KvSums sums_;
  int64_t output_tokens_ = 0;
  double now_ = 0;
  ServingOutcome outcome_;
};

}  // namespace

std::unique_ptr<SimulatedEngine> MakeEngine(const SimulationOptions& options) {
  switch (options.policy) {
    case ServingPolicy::kSomnus:
      return MakePagedEngine(ToSchedulerOptions(options.engine),
                             {.n = options.engine.n,
                              .beams = options.engine.beams,
                              .seed = options.engine.seed,
                              .prices = {options.cost.per_prefill_token,
                                         options.cost.per_swapped_token * options.engine.block_size}});
    case ServingPolicy::kOrcaOracle:
      return MakeOrcaEngine(options.engine, Reservation::kOracle);
    case ServingPolicy::kOrcaPow2:
      return MakeOrcaEngine(options.engine, Reservation::kPow2);
    case ServingPolicy::kOrcaMax:
      return MakeOrcaEngine(options.engine, Reservation::kMax);
    case ServingPolicy::kFasterTransformer:
      return MakeRequestBatchEngine(options.engine);
  }
  return nullptr;
}

absl::StatusOr<ServingOutcome> Simulate(const SimulationOptions& options, RequestSource* source) {
  return Simulate(
      options, [&] { return MakeEngine(options); }, source);
}

absl::StatusOr<ServingOutcome> Simulate(const SimulationOptions& options, const EngineFactory& make_engine,
                                        RequestSource* source) {
  if (options.router == RouterKind::kPrefixAffinity && options.num_engines > Router::kMaxReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("--router: prefix-affinity knows ", Router::kMaxReplicas, " engines at most"));
  }
  if (options.engine.kv_slots < options.engine.block_size)
    return absl::InvalidArgumentError("--kv-slots: is less than --block-size");
  if (options.cost.base <= 0) return absl::InvalidArgumentError("a step takes no time");
  return Simulation(options, make_engine, source).Run();
}

}  // namespace somnus
