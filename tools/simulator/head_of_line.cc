#include "tools/simulator/head_of_line.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "tools/simulator/paged_engine.h"
#include "tools/simulator/serving_simulation.h"

namespace somnus {
namespace {

constexpr int32_t kStepTokens = 512;  // --max-num-batched-tokens has this default
constexpr double kAging = 64;         // tokens per step of waiting: an eighth of a step

// The first tokens of an engine's requests, by id.
struct FirstTokens {
  std::vector<double> seconds;
  std::vector<int64_t> steps;
};

struct Options {
  const char* name;
  int32_t max_num_batched_tokens, max_num_partial_prefills, max_long_partial_prefills,
      long_prefill_token_threshold;
  int64_t kv_slots;
  int32_t short_input = 2;
};

constexpr Options kDefaults = {"the served scheduler", kStepTokens, 2, 1, 0, 1 << 20};

SchedulerOptions ToScheduler(const Options& row) {
  EngineOptions engine;
  engine.kv_slots = row.kv_slots;
  engine.max_num_seqs = 128;
  engine.max_num_batched_tokens = row.max_num_batched_tokens;
  engine.max_model_len = 8192;
  SchedulerOptions options = ToSchedulerOptions(engine);
  options.max_num_partial_prefills = row.max_num_partial_prefills;
  options.max_long_partial_prefills = row.max_long_partial_prefills;
  options.long_prefill_token_threshold = row.long_prefill_token_threshold;
  return options;
}

void PrintOutcome(const char* name, const HeadOfLineOutcome& outcome) {
  std::printf("| %s | %lld | %.3f | %.1f %% | %.2f | %.2f | %.2f |\n", name,
              static_cast<long long>(outcome.short_ttft_steps), outcome.short_ttft_s,
              100 * outcome.short_ttft_s / outcome.last_long_s, outcome.first_long_s, outcome.mean_long_s,
              outcome.last_long_s);
}

constexpr const char* kHead =
    "| short: steps | s | of the six | first of the six, s | mean | last |\n|---|---|---|---|---|---|---|\n";

void PrintSchedulerOptions(const CostModel& cost) {
  const Options rows[] = {
      {"the defaults: step 512, threshold 256, partial 2, long 1", 512, 2, 1, 0, 65536},
      {"step 2048, so threshold 1024", 2048, 2, 1, 0, 65536},
      {"long 2: two long prompts in a step", 512, 2, 2, 0, 65536},
      {"long 4, partial 4, threshold 64", 512, 4, 4, 64, 65536},
      {"threshold 512: one long prompt takes a whole step", 512, 2, 1, 512, 65536},
      {"threshold 4096: no prompt is long", 512, 2, 1, 4096, 65536},
      {"the defaults, the short one of 300 tokens", 512, 2, 1, 0, 65536, 300},
      {"the defaults, the short one of 1,500 tokens", 512, 2, 1, 0, 65536, 1500},
      {"the defaults, a cache of 16,384 tokens", 512, 2, 1, 0, 16384},
      {"long 2, a cache of 4,096 tokens", 512, 2, 2, 0, 4096 * 2 - 1024},
  };
  std::printf("| the scheduler's options %s", kHead);
  for (const Options& row : rows) {
    const auto engine = MakePagedEngine(ToScheduler(row));
    const HeadOfLineOptions options = {.short_input = row.short_input};
    PrintOutcome(row.name, RunHeadOfLine(options, cost, engine.get()));
  }
}

constexpr std::pair<const char*, PrefillSharing> kRules[] = {
    {"first come, first served", PrefillSharing::kFirstComeFirstServed},
    {"equal parts", PrefillSharing::kEqualParts},
    {"shortest remaining first", PrefillSharing::kShortestRemaining},
    {"shortest remaining first with aging", PrefillSharing::kShortestRemainingAging}};

void PrintRules(const CostModel& cost) {
  std::printf("\n| rule %s", kHead);
  for (const auto& [name, rule] : kRules) {
    const auto engine = MakeSharingEngine(rule, kStepTokens, kAging);
    PrintOutcome(name, RunHeadOfLine({}, cost, engine.get()));
  }
}

// Long prompts among short ones, which take most of the engine's time.
class MixedLoad : public RequestSource {
 public:
  MixedLoad(double rate, int64_t requests, uint64_t seed) : rate_(rate), left_(requests), random_(seed) {}
  std::optional<LoadRequest> Next() override {
    if (left_-- == 0) return std::nullopt;
    next_.id += 1;
    next_.arrival_s += random_.Exponential(1 / rate_);
    next_.input = next_.id % kLongEvery == 0 ? 3500 : 200;
    return next_;
  }
  static constexpr int64_t kLongEvery = 50;

 private:
  const double rate_;
  int64_t left_;
  LoadRandom random_;
  LoadRequest next_;
};

// Times to the first token, of short and of long prompts.
std::pair<std::vector<double>, std::vector<double>> RunMixed(SimulatedEngine* engine, const CostModel& cost,
                                                             double rate, uint64_t seed) {
  MixedLoad load(rate, 20000, seed);
  std::vector<double> times[2], arrivals;
  double now = 0;
  std::optional<LoadRequest> next = load.Next();
  while (true) {
    for (; next.has_value() && next->arrival_s <= now; next = load.Next()) {
      arrivals.resize(static_cast<size_t>(next->id) + 1);
      arrivals[next->id] = next->arrival_s;
      SOMNUS_CHECK(engine->Add(*next).ok());
    }
    const std::optional<StepLoad> step = engine->BeginStep();
    if (!step.has_value()) {
      if (!next.has_value()) break;
      now = next->arrival_s;
      continue;
    }
    now += cost.StepSeconds(*step);
    StepResult result;
    engine->EndStep(&result);
    for (const int64_t id : result.first_tokens)
      times[id % MixedLoad::kLongEvery == 0 ? 1 : 0].push_back(now - arrivals[id]);
  }
  for (std::vector<double>& sorted : times) std::sort(sorted.begin(), sorted.end());
  return {times[0], times[1]};
}

void PrintMixed(const CostModel& cost, uint64_t seed) {
  const double step = cost.StepSeconds({kStepTokens, 0, 2000});
  const double tokens_per_request = 200 + 3300.0 / MixedLoad::kLongEvery;
  std::printf(
      "\n| load | rule | 200 tokens: TTFT p50, s | p99 | 3,500 tokens: p50 | p99 | most |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const double share : {0.7, 0.95}) {
    const double rate = share * kStepTokens / step / tokens_per_request;
    const auto print = [&](const char* name, SimulatedEngine* engine) {
      const auto [brief, lengthy] = RunMixed(engine, cost, rate, seed);
      const auto at = [](const std::vector<double>& sorted, double quantile) {
        return sorted[static_cast<size_t>(quantile * static_cast<double>(sorted.size() - 1))];
      };
      std::printf("| %.0f %% | %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", 100 * share, name, at(brief, 0.5),
                  at(brief, 0.99), at(lengthy, 0.5), at(lengthy, 0.99), lengthy.back());
    };
    for (const auto& [name, rule] : kRules) print(name, MakeSharingEngine(rule, kStepTokens, kAging).get());
    print(kDefaults.name, MakePagedEngine(ToScheduler(kDefaults)).get());
  }
}

}  // namespace

HeadOfLineOutcome RunHeadOfLine(const HeadOfLineOptions& options, const CostModel& cost,
                                SimulatedEngine* engine) {
  FirstTokens first;
  first.seconds.resize(options.num_long + 1);
  first.steps.resize(options.num_long + 1);
  LoadRequest request;
  request.output = options.output;
  request.input = options.long_input;
  for (request.id = 0; request.id < options.num_long; ++request.id) SOMNUS_CHECK(engine->Add(request).ok());
  double now = 0;
  int64_t steps = 0;
  for (std::optional<StepLoad> load = engine->BeginStep(); load.has_value(); load = engine->BeginStep()) {
    if (steps == 0) {
      request.input = options.short_input;
      SOMNUS_CHECK(engine->Add(request).ok());
    }
    now += cost.StepSeconds(*load);
    ++steps;
    StepResult result;
    engine->EndStep(&result);
    for (const int64_t id : result.first_tokens) {
      first.seconds[id] = now;
      first.steps[id] = steps;
    }
  }
  HeadOfLineOutcome outcome;
  outcome.short_ttft_s = first.seconds.back();
  outcome.short_ttft_steps = first.steps.back();
  first.seconds.pop_back();
  outcome.first_long_s = *std::min_element(first.seconds.begin(), first.seconds.end());
  outcome.last_long_s = *std::max_element(first.seconds.begin(), first.seconds.end());
  for (const double seconds : first.seconds) outcome.mean_long_s += seconds / options.num_long;
  return outcome;
}

void PrintHeadOfLine(const CostModel& cost, uint64_t seed) {
  PrintSchedulerOptions(cost);
  PrintRules(cost);
  PrintMixed(cost, seed);
}

}  // namespace somnus
