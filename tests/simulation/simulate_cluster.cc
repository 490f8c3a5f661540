// Runs simulated clusters, one by default:
//   simulate_cluster [--seed=N] [--seeds=COUNT] [--max-failures=COUNT] [--verbose]

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "tests/simulation/run_seeds.h"

int main(int argc, char** argv) {
  somnus::simulation::SeedRange range;
  size_t max_failures = 10;
  bool verbose = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const bool good = argument == "--verbose"                      ? (verbose = true)
                      : absl::ConsumePrefix(&argument, "--seed=")  ? absl::SimpleAtoi(argument, &range.first)
                      : absl::ConsumePrefix(&argument, "--seeds=") ? absl::SimpleAtoi(argument, &range.count)
                      : absl::ConsumePrefix(&argument, "--max-failures=")
                          ? absl::SimpleAtoi(argument, &max_failures)
                          : false;
    if (good) continue;
    std::fprintf(stderr, "usage: %s [--seed=N] [--seeds=COUNT] [--max-failures=COUNT] [--verbose]\n",
                 argv[0]);
    return 2;
  }
  const somnus::simulation::Summary summary = somnus::simulation::RunSeeds(range, verbose, max_failures);
  std::printf("%s\n", summary.Describe().c_str());
  return summary.failures.empty() ? 0 : 1;
}
