#pragma once
// Engines that serve requests, in virtual time: a router gives each request to an engine on arrival, and each
// engine makes steps for as long as there is something to compute. The same options and requests give the
// same outcome.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/simulator/cost_model.h"
#include "tools/simulator/serving_load.h"
#include "tools/simulator/simulated_engine.h"

namespace somnus {

// The batching and memory management of an engine.
enum class ServingPolicy { kSomnus, kOrcaOracle, kOrcaPow2, kOrcaMax, kFasterTransformer };

enum class RouterKind {
  kRoundRobin,
  kLeastTokens,     // of the prompts that wait or run there
  kPrefixAffinity,  // the coordinator's own Router, for 64 engines at most
};

struct SimulationOptions {
  ServingPolicy policy = ServingPolicy::kSomnus;
  EngineOptions engine;
  CostModel cost;
  int32_t num_engines = 1;
  RouterKind router = RouterKind::kRoundRobin;
};

// The distribution of a figure over the requests that ended.
struct Quantiles {
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
};

struct ServingOutcome {
  int64_t requests = 0;  // that ended
  int64_t refused = 0;   // that no engine could ever serve
  // Seconds from arrival to end, by output token.
  Quantiles normalized_latency_s;
  Quantiles ttft_s;
  double simulated_s = 0;
  int64_t num_steps = 0;
  int64_t num_preemptions = 0;
  int64_t num_swap_preemptions = 0;  // the part by swap
  double output_tokens_per_s = 0;
  // Means over the time in which a step was under way and requests still came, of all engines.
  double kv_utilization = 0;  // live / reserved slots
  // Shares of all slots; the remaining slots are free, or in pieces that are too small.
  double live = 0, future = 0, surplus = 0, rounding = 0;
  double running_requests = 0;
  double sharing_saved = 0;  // of the slots that sequences would hold without sharing
};

std::unique_ptr<SimulatedEngine> MakeEngine(const SimulationOptions& options);

// Runs until all requests have ended. InvalidArgument for options that do not go together.
absl::StatusOr<ServingOutcome> Simulate(const SimulationOptions& options, RequestSource* source);

// The same with engines that `make_engine` makes, each once.
using EngineFactory = std::function<std::unique_ptr<SimulatedEngine>()>;
absl::StatusOr<ServingOutcome> Simulate(const SimulationOptions& options, const EngineFactory& make_engine,
                                        RequestSource* source);

}  // namespace somnus
