#include "tests/simulation/run_seeds.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/models_cluster.h"

namespace somnus::simulation {
namespace {

constexpr uint64_t kSeedsOfOneProcess = 100;
constexpr int kMaxLine = 1000;

// A child process writes of each seed a line "seed SEED TRACE VIOLATION" after a line "count NUMBER NAME" for
// each count.
void Write(uint64_t seed, const Outcome& outcome, std::FILE* out) {
  for (const auto& [name, count] : outcome.counts)
    std::fprintf(out, "count %" PRId64 " %s\n", count, name.c_str());
  const std::string violation = absl::StrReplaceAll(outcome.violation, {{"\n", " "}});
  std::fprintf(out, "seed %" PRIu64 " %" PRIu64 " %.400s\n", seed, outcome.trace, violation.c_str());
  std::fflush(out);
}

// A child process that runs seeds in turn, and ends after a violation.
void RunChild(const Scenario& scenario, uint64_t first, uint64_t end, bool verbose, int out) {
  std::FILE* const lines = fdopen(out, "w");
  for (uint64_t seed = first; seed < end; ++seed) {
    const Outcome outcome = scenario.run(seed, verbose);
    Write(seed, outcome, lines);
    if (!outcome.violation.empty()) break;
  }
  _exit(0);
}

// Adds the figures of a line; returns the seed of a line that ends a seed, else 0.
uint64_t Read(const char* line, Counts* counts, Summary* summary) {
  int64_t count = 0;
  uint64_t seed = 0, trace = 0;
  char text[kMaxLine] = "";
  if (std::sscanf(line, "count %" SCNd64 " %999[^\n]", &count, text) == 2) {
    (*counts)[text] += count;
    return 0;
  }
  if (std::sscanf(line, "seed %" SCNu64 " %" SCNu64 " %999[^\n]", &seed, &trace, text) < 2) std::abort();
  for (const auto& [name, number] : std::exchange(*counts, {})) summary->counts[name] += number;
  summary->traces[seed] = trace;
  ++summary->num_seeds;
  if (text[0] != '\0') summary->failures.emplace_back(seed, text);
  return seed;
}

// Runs seeds from `first` in a child; returns the seed to go on with.
uint64_t RunSome(const Scenario& scenario, uint64_t first, uint64_t end, bool verbose, Summary* summary) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    RunChild(scenario, first, end, verbose, ends[1]);
  }
  close(ends[1]);
  std::FILE* const lines = fdopen(ends[0], "r");
  uint64_t next = first;
  Counts counts;
  char line[kMaxLine];
  while (std::fgets(line, sizeof(line), lines) != nullptr) {
    if (const uint64_t seed = Read(line, &counts, summary); seed > 0) next = seed + 1;
  }
  std::fclose(lines);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return next;
  summary->failures.emplace_back(next, absl::StrCat("the process ended with status ", status));
  ++summary->num_seeds;
  return next + 1;
}

}  // namespace

const Scenario kOneModel = {RunCluster, ""};
const Scenario kStages = {RunStages, " --stages"};
const Scenario kSeveralModels = {RunModels, " --models"};

std::string Summary::Describe() const {
  uint64_t trace = 0;
  for (const auto& [seed, trace_of_seed] : traces) trace = trace * 31 + trace_of_seed;
  std::string text = absl::StrCat(num_seeds, " seeds");
  for (const auto& [name, count] : counts) absl::StrAppend(&text, ", ", count, " ", name);
  absl::StrAppend(&text, ", ", failures.size(), " failures, trace ", absl::Hex(trace, absl::kZeroPad16));
  for (const auto& [seed, violation] : failures)
    absl::StrAppend(&text, "\n  bazel run //tests/simulation:simulate_cluster --", flag, " --seed=", seed,
                    " --verbose  # ", violation);
  return text;
}

Summary RunSeeds(const Scenario& scenario, const SeedRange& range, bool verbose, size_t max_failures) {
  Summary summary{.flag = scenario.flag};
  const uint64_t end = range.first + range.count;
  uint64_t next = range.first;
  while (next < end && summary.failures.size() < max_failures)
    next = RunSome(scenario, next, std::min(end, next + kSeedsOfOneProcess), verbose, &summary);
  return summary;
}

}  // namespace somnus::simulation
