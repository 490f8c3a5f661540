// simulator: the coordinator's scheduler and block manager in virtual time, over a modelled worker, beside
// the policies that the paper compares with.
//
//   simulator --trace=sharegpt --policy=somnus --rate=2 --requests=2000 --json
//   simulator --figures=DIR the paper's figures, as SVG, with the numbers
//   simulator --head-of-line     a short prompt behind long ones
//   simulator --fit=FILE         a cost model for the steps in FILE
//
// docs/paper.md explains the model and the results.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "tools/simulator/figures.h"
#include "tools/simulator/head_of_line.h"
#include "tools/simulator/serving_report.h"
#include "tools/simulator/serving_simulation.h"

namespace somnus {
namespace {

struct SimulatorFlags {
  DrawnLoadOptions load;
  std::string load_file;
  SimulationOptions simulation;
  std::string worker = "a100-opt-13b";
  std::optional<CostModel> cost;
  int64_t kv_slots = 0;
  int64_t swap_slots = -1;
  double swap_cost = -1;
  uint64_t seed = 1;
  bool json = false;
  std::string figures;
  double figure_seconds = 1000;
  bool head_of_line = false;
  std::string fit;
};

absl::Status ParseCost(const std::string& text, std::optional<CostModel>* cost) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  std::vector<double> numbers;
  for (const std::string& part : parts) {
    double number = -1;
    if (!absl::SimpleAtod(part, &number) || !(number >= 0 && number < 1e3)) break;
    numbers.push_back(number);
  }
  if (parts.size() != 4 || numbers.size() != 4 || numbers[0] == 0)
    return absl::InvalidArgumentError("is not four seconds that are separated by commas, the first above 0");
  *cost = CostModel{numbers[0], numbers[1], numbers[2], numbers[3], 0};
  return absl::OkStatus();
}

FlagGroup LoadFlags(SimulatorFlags* f) {
  return {"Load",
          {Flag::OneOf("trace", &f->load.trace,
                       {{"sharegpt", LoadTrace::kShareGpt}, {"alpaca", LoadTrace::kAlpaca}},
                       "whose lengths requests have"),
           Flag::Number("rate", &f->load.rate, 1e-6, 1e9, "requests per second, of a Poisson process"),
           Flag::Int("requests", &f->load.requests, 1, 1000000000, "that come"),
           Flag::Int("seed", &f->seed, 0, INT64_MAX, "of the load"),
           Flag::Int("prefix-groups", &f->load.prefix_groups, 0, 1 << 20,
                     "each request begins with the prefix of one of so many groups"),
           Flag::Int("prefix", &f->load.prefix, 0, 1 << 20, "tokens of such a prefix"),
           Flag::Text("load", &f->load_file, "requests from this file, one JSON object a line, instead")
               .Shows("FILE")}};
}

FlagGroup EngineFlags(SimulatorFlags* f) {
  EngineOptions* const engine = &f->simulation.engine;
  return {
      "Engines",
      {Flag::OneOf("policy", &f->simulation.policy,
                   {{"somnus", ServingPolicy::kSomnus},
                    {"orca-oracle", ServingPolicy::kOrcaOracle},
                    {"orca-pow2", ServingPolicy::kOrcaPow2},
                    {"orca-max", ServingPolicy::kOrcaMax},
                    {"fastertransformer", ServingPolicy::kFasterTransformer}},
                   "batching and memory management"),
       Flag::Int("n", &engine->n, 1, 64, "sequences that are sampled for each request"),
       Flag::Int("beams", &engine->beams, 0, 64, "of beam search for each request; 0: sampling"),
       Flag::Int("block-size", &engine->block_size, 1, 2048, "tokens of a block"),
       Flag::Int("max-num-seqs", &engine->max_num_seqs, 1, 65536, "sequences that run at once"),
       Flag::Int("max-num-batched-tokens", &engine->max_num_batched_tokens, 1, 1 << 20, "tokens of one step"),
       Flag::Int("max-model-len", &engine->max_model_len, 1, 1 << 24, "tokens of the longest sequence"),
       Flag::OneOf("preemption", &engine->preemption,
                   {{"auto", PreemptionMode::kAuto},
                    {"swap", PreemptionMode::kSwap},
                    {"recompute", PreemptionMode::kRecompute}},
                   "as the coordinator has it; of the policy somnus"),
       Flag::Int("swap-slots", &f->swap_slots, -1, INT64_C(1) << 34,
                 "tokens that host memory has room for; -1: what the worker has in 4 GiB"),
       Flag::Number("swap-cost", &f->swap_cost, -1, 1e3,
                    "seconds in which a token is copied to host memory, or back; -1: the worker's"),
       Flag::Switch("enable-prefix-caching", &engine->enable_prefix_caching, "as the coordinator has it"),
       Flag::Int("num-engines", &f->simulation.num_engines, 1, 100000, "that serve the load"),
       Flag::OneOf("router", &f->simulation.router,
                   {{"round-robin", RouterKind::kRoundRobin},
                    {"least-tokens", RouterKind::kLeastTokens},
                    {"prefix-affinity", RouterKind::kPrefixAffinity}},
                   "that gives requests to engines"),
       Flag::Text("worker", &f->worker, "a100-opt-13b or cpu-smollm2-135m: the cost model and the memory"),
       Flag::Custom(
           "cost", "BASE,PREFILL,DECODE,KV", "",
           [f](const std::string& text) { return ParseCost(text, &f->cost); },
           "seconds of a step, and for each prompt token, decoding sequence and token of the cache that is "
           "read"),
       Flag::Int("kv-slots", &f->kv_slots, 0, INT64_C(1) << 34, "tokens of the KV cache; 0: the worker's")}};
}

FlagTable Table(SimulatorFlags* f) {
  FlagTable table;
  table.program = "simulator";
  table.usage = "simulator [flags]";
  table.about = "Runs the scheduler and the block manager in virtual time over a modelled worker.";
  FlagGroup other = {
      "Output",
      {Flag::Switch("json", &f->json, "print one JSON object"),
       Flag::Text("figures", &f->figures, "write the paper's figures into this directory instead")
           .Shows("DIR"),
       Flag::Number("figure-seconds", &f->figure_seconds, 1, 1e6, "in which requests come, for each point"),
       Flag::Switch("head-of-line", &f->head_of_line, "a short prompt behind long ones instead"),
       Flag::Text("fit", &f->fit, "fit a cost model to the steps in this file instead").Shows("FILE")}};
  table.groups = {LoadFlags(f), EngineFlags(f), other};
  return table;
}

absl::StatusOr<SimulationOptions> Resolve(const SimulatorFlags& flags) {
  SimulationOptions options = flags.simulation;
  ASSIGN_OR_RETURN(const ModelledWorker worker, FindWorker(flags.worker));
  options.cost = flags.cost.value_or(worker.cost);
  options.cost.per_swapped_token = flags.swap_cost < 0 ? worker.cost.per_swapped_token : flags.swap_cost;
  options.engine.swap_slots = flags.swap_slots < 0 ? worker.swap_slots : flags.swap_slots;
  options.engine.kv_slots = flags.kv_slots > 0 ? flags.kv_slots : worker.kv_slots;
  options.engine.seed = flags.seed;
  return options;
}

absl::Status Serve(const SimulatorFlags& flags, const SimulationOptions& options) {
  absl::StatusOr<ServingOutcome> outcome;
  if (flags.load_file.empty()) {
    DrawnLoadOptions load = flags.load;
    load.seed = flags.seed;
    outcome = Simulate(options, DrawLoad(load).get());
  } else {
    ASSIGN_OR_RETURN(const std::unique_ptr<LoadFile> file, LoadFile::Open(flags.load_file));
    outcome = Simulate(options, file.get());
    RETURN_IF_ERROR(file->status());
  }
  if (!outcome.ok()) return outcome.status();
  std::printf("%s\n", flags.json ? ToJson(*outcome).dump().c_str() : ToText(*outcome).c_str());
  return absl::OkStatus();
}

absl::Status Fit(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<StepSample> samples, ReadStepSamples(path));
  ASSIGN_OR_RETURN(const CostFit fit, FitCostModel(samples));
  std::printf("--cost=%.4g,%.4g,%.4g,%.4g\n", fit.model.base, fit.model.per_prefill_token,
              fit.model.per_decode_sequence, fit.model.per_kv_token);
  std::printf("%zu steps; error: median %.1f %%, p90 %.1f %%, largest %.1f %%\n", samples.size(),
              100 * fit.median_error, 100 * fit.p90_error, 100 * fit.largest_error);
  return absl::OkStatus();
}

absl::Status Run(const SimulatorFlags& flags) {
  if (!flags.fit.empty()) return Fit(flags.fit);
  ASSIGN_OR_RETURN(const SimulationOptions options, Resolve(flags));
  if (!flags.figures.empty()) return WriteFigures(options, flags.figure_seconds, flags.seed, flags.figures);
  if (flags.head_of_line) {
    PrintHeadOfLine(options.cost, flags.seed);
    return absl::OkStatus();
  }
  return Serve(flags, options);
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::SimulatorFlags flags;
  const somnus::FlagTable table = somnus::Table(&flags);
  if (const auto code = somnus::ParseCommandLine(table, argc, argv); code.has_value()) return *code;
  const absl::Status status = somnus::Run(flags);
  return status.ok() ? 0 : somnus::UsageError(table, status);
}
