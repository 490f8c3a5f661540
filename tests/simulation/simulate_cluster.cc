// Runs simulated clusters, one by default; --stages: clusters whose ranks are the stages of a pipeline;
// --models: clusters that serve several models.
//   simulate_cluster [--stages | --models] [--seed=N] [--seeds=COUNT] [--max-failures=COUNT] [--verbose]

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "tests/simulation/run_seeds.h"

int main(int argc, char** argv) {
  somnus::simulation::SeedRange range;
  size_t max_failures = 10;
  bool verbose = false, stages = false, models = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const bool good = argument == "--verbose"                      ? (verbose = true)
                      : argument == "--stages"                     ? (stages = true)
                      : argument == "--models"                     ? (models = true)
                      : absl::ConsumePrefix(&argument, "--seed=")  ? absl::SimpleAtoi(argument, &range.first)
                      : absl::ConsumePrefix(&argument, "--seeds=") ? absl::SimpleAtoi(argument, &range.count)
                      : absl::ConsumePrefix(&argument, "--max-failures=")
                          ? absl::SimpleAtoi(argument, &max_failures)
                          : false;
    if (good) continue;
    std::fprintf(
        stderr,
        "usage: %s [--stages | --models] [--seed=N] [--seeds=COUNT] [--max-failures=COUNT] [--verbose]\n",
        argv[0]);
    return 2;
  }
  using somnus::simulation::kOneModel, somnus::simulation::kStages, somnus::simulation::kSeveralModels;
  const somnus::simulation::Scenario& scenario = models ? kSeveralModels : stages ? kStages : kOneModel;
  const somnus::simulation::Summary summary =
      somnus::simulation::RunSeeds(scenario, range, verbose, max_failures);
  std::printf("%s\n", summary.Describe().c_str());
  return summary.failures.empty() ? 0 : 1;
}
