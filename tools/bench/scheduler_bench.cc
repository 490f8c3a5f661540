// scheduler_bench: the cost of the coordinator's scheduler and block manager by themselves, on one core.
//
//   scheduler_bench [--json] [--sequences=N] [--context=N] [--steps=N]
//
// Four questions. How long does it take to schedule and to encode a step in which all running sequences
// decode, and does that depend on how many sequences wait, how many blocks there are, how many users share
// fairly, or how many long prompts with slots wait? How much does an operation on a block cost, by the number
// of blocks? Only memory may show there: a million blocks do not fit into a processor's cache. How much does
// the trace of steps add, once the trace is full? And how much does prompt lookup add to a step of a sequence
// in which nothing is found?

#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/monotonic.h"
#include "coordinator/metrics/step_trace.h"
#include "coordinator/scheduler/ngram_lookup.h"
#include "tools/bench/median.h"
#include "tools/bench/scheduler/block_ops.h"
#include "tools/bench/scheduler/decode_steps.h"
#include "tools/probe/machine_probe.h"

namespace somnus {
namespace {

// The context of the sequences beside long prompts: computing long contexts by such steps would take long.
constexpr int32_t kBriefContext = 64;

struct BenchFlags {
  int32_t sequences = 1024;
  int32_t context = 4096;
  int32_t steps = 200;
  bool json = false;
};

FlagTable Table(BenchFlags* f) {
  FlagTable table;
  table.program = "scheduler_bench";
  table.usage = "scheduler_bench [flags]";
  table.about = "Times the scheduler's steps and the block manager's operations.";
  table.groups = {{"Flags",
                   {Flag::Int("sequences", &f->sequences, 1, 4096, "that run"),
                    Flag::Int("context", &f->context, 1, 1 << 16, "tokens of each sequence"),
                    Flag::Int("steps", &f->steps, 1, 100000, "that are measured"),
                    Flag::Switch("json", &f->json, "print one JSON object")}}};
  return table;
}

nlohmann::json ToJson(const DecodeStepTimes& times) {
  return {{"schedule_us", times.schedule},
          {"encode_us", times.encode},
          {"decode_step_us", times.both},
          {"least_us", times.least},
          {"most_us", times.most},
          {"update_us", times.update},
          {"message_bytes", times.message_bytes},
          {"num_blocks", times.num_blocks}};
}

nlohmann::json ToJson(const BlockOpTimes& times) {
  return {{"allocate", times.allocate}, {"free", times.free}, {"touch", times.touch}, {"fork", times.fork}};
}

// Nanoseconds for one step, the median of `rounds`; each round overwrites the whole trace.
double MeasureTrace(int32_t rounds) {
  const TraceLimits limits;
  StepTrace trace(nullptr, limits);
  StepEvent event;
  std::vector<double> nanoseconds;
  for (int32_t round = 0; round <= rounds; ++round) {
    const MonotonicTime begin = MonotonicNow();
    for (size_t i = 0; i < limits.max_steps; ++i) {
      ++event.step_id;
      trace.OnStep(event);
    }
    const double all = absl::ToDoubleNanoseconds(MonotonicNow() - begin);
    if (round > 0) nanoseconds.push_back(all / static_cast<double>(limits.max_steps));
  }
  return Median(std::move(nanoseconds));
}

// Nanoseconds for one token of a sequence of random tokens behind `context` earlier tokens, the median of
// `rounds`.
double MeasureLookup(int32_t context, int32_t rounds) {
  constexpr int32_t kTokens = 1000, kMin = 2, kMax = 5, kMost = 8;
  std::mt19937 random(1);
  std::vector<double> nanoseconds;
  for (int32_t round = 0; round < rounds; ++round) {
    std::vector<int32_t> tokens(context + kTokens);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 49152);
    NgramLookup lookup(kMin, kMax);
    std::vector<int32_t> draft;
    lookup.Propose(absl::MakeConstSpan(tokens).first(context), kMost, &draft);
    const MonotonicTime begin = MonotonicNow();
    for (int32_t i = 1; i <= kTokens; ++i)
      lookup.Propose(absl::MakeConstSpan(tokens).first(context + i), kMost, &draft);
    nanoseconds.push_back(absl::ToDoubleNanoseconds(MonotonicNow() - begin) / kTokens);
  }
  return Median(std::move(nanoseconds));
}

nlohmann::json Measure(const BenchFlags& flags) {
  DecodeStepOptions options;
  options.sequences = flags.sequences;
  options.context = flags.context;
  options.steps = flags.steps;
  const DecodeStepTimes alone = MeasureDecodeSteps(options);
  DecodeStepOptions many_waiting = options, many_users = options, many_blocks = options;
  many_waiting.waiting = 100000;
  many_users.waiting = 100000;
  many_users.users = 1000;
  many_blocks.spare_blocks = 1000000;
  DecodeStepOptions few_long = options, many_long = options;
  few_long.context = many_long.context = kBriefContext;
  few_long.long_prompts = flags.steps + 1000;
  many_long.long_prompts = flags.steps + 10000;
  nlohmann::json json = {{"decode_step_us", alone.both}, {"sequences", flags.sequences}};
  json["context"] = flags.context;
  json["decode_steps"] = {{"alone", ToJson(alone)},
                          {"100000_waiting", ToJson(MeasureDecodeSteps(many_waiting))},
                          {"100000_of_1000_users", ToJson(MeasureDecodeSteps(many_users))},
                          {"1000000_more_blocks", ToJson(MeasureDecodeSteps(many_blocks))},
                          {"1000_long_prompts", ToJson(MeasureDecodeSteps(few_long))},
                          {"10000_long_prompts", ToJson(MeasureDecodeSteps(many_long))}};
  json["trace_ns"] = MeasureTrace(flags.steps);
  json["lookup_ns"] = MeasureLookup(flags.context, flags.steps);
  for (const int32_t num_blocks : {1000, 100000, 1000000}) {
    const BlockOpTimes times = MeasureBlockOps(num_blocks, flags.steps);
    json["ns_per_block_op"][absl::StrCat(num_blocks)] = times.mean();
    json["block_ops_ns"][absl::StrCat(num_blocks)] = ToJson(times);
  }
  return json;
}

void Print(const nlohmann::json& json) {
  for (const auto& [name, times] : json["decode_steps"].items()) {
    std::printf("%-20s schedule %7.1f us, encode %6.1f us, both %7.1f us (%.1f..%.1f), update %7.1f us\n",
                name.c_str(), times["schedule_us"].get<double>(), times["encode_us"].get<double>(),
                times["decode_step_us"].get<double>(), times["least_us"].get<double>(),
                times["most_us"].get<double>(), times["update_us"].get<double>());
  }
  for (const auto& [blocks, times] : json["block_ops_ns"].items()) {
    std::printf("%8s blocks: allocate %6.1f ns, free %6.1f ns, touch %6.1f ns, fork %6.1f ns\n",
                blocks.c_str(), times["allocate"].get<double>(), times["free"].get<double>(),
                times["touch"].get<double>(), times["fork"].get<double>());
  }
  std::printf("a step in the trace: %.1f ns, prompt lookup of a sequence: %.1f ns\n",
              json["trace_ns"].get<double>(), json["lookup_ns"].get<double>());
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::BenchFlags flags;
  if (const auto code = somnus::ParseCommandLine(somnus::Table(&flags), argc, argv); code.has_value())
    return *code;
  const std::string before = somnus::ToString(somnus::ProbeMachine());
  nlohmann::json json = somnus::Measure(flags);
  const std::string after = somnus::ToString(somnus::ProbeMachine());
  if (flags.json) {
    json["machine"] = {{"before", before}, {"after", after}};
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  somnus::Print(json);
  std::printf("machine before: %s\nmachine after:  %s\n", before.c_str(), after.c_str());
  return 0;
}
