#include "tests/simulation/run_seeds.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/simulation/cluster.h"

namespace somnus::simulation {
namespace {

constexpr uint64_t kSeedsOfOneProcess = 100;

// What a child writes after each seed.
struct Record {
  uint64_t seed, trace;
  int num_requests, num_faults, num_restarts, num_adopted_asleep, num_replicas;
  int64_t num_recoveries, num_sleeps, num_weights_changes, num_resizes, num_pins, num_swapped_blocks,
      num_host_hit_tokens, num_spill_writes, num_disk_errors, num_moved, num_rolls;
  char violation[400];
};

// A child process that runs seeds one after another, and ends after a violation.
void RunChild(uint64_t first, uint64_t end, bool verbose, int out) {
  for (uint64_t seed = first; seed < end; ++seed) {
    const Outcome outcome = RunCluster(seed, verbose);
    Record record = {};
    record.seed = seed;
    record.trace = outcome.trace;
    record.num_requests = outcome.num_requests;
    record.num_faults = outcome.num_faults;
    record.num_restarts = outcome.num_restarts;
    record.num_adopted_asleep = outcome.num_adopted_asleep;
    record.num_recoveries = outcome.num_recoveries;
    record.num_sleeps = outcome.num_sleeps;
    record.num_weights_changes = outcome.num_weights_changes;
    record.num_resizes = outcome.num_resizes;
    record.num_pins = outcome.num_pins;
    record.num_swapped_blocks = outcome.num_swapped_blocks;
    record.num_host_hit_tokens = outcome.num_host_hit_tokens;
    record.num_spill_writes = outcome.num_spill_writes;
    record.num_disk_errors = outcome.num_disk_errors;
    record.num_replicas = outcome.num_replicas;
    record.num_moved = outcome.num_moved;
    record.num_rolls = outcome.num_rolls;
    std::snprintf(record.violation, sizeof(record.violation), "%s", outcome.violation.c_str());
    if (write(out, &record, sizeof(record)) != sizeof(record)) _exit(1);
    if (!outcome.violation.empty()) _exit(0);
  }
  _exit(0);
}

// Runs seeds from `first` in a child; returns the seed to go on with.
uint64_t RunSome(uint64_t first, uint64_t end, bool verbose, Summary* summary) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    RunChild(first, end, verbose, ends[1]);
  }
  close(ends[1]);
  uint64_t next = first;
  Record record;
  while (read(ends[0], &record, sizeof(record)) == sizeof(record)) {
    next = record.seed + 1;
    ++summary->num_seeds;
    summary->traces[record.seed] = record.trace;
    summary->num_requests += record.num_requests;
    summary->num_faults += record.num_faults;
    summary->num_restarts += record.num_restarts;
    summary->num_adopted_asleep += record.num_adopted_asleep;
    summary->num_recoveries += record.num_recoveries;
    summary->num_sleeps += record.num_sleeps;
    summary->num_weights_changes += record.num_weights_changes;
    summary->num_resizes += record.num_resizes;
    summary->num_pins += record.num_pins;
    summary->num_swapped_blocks += record.num_swapped_blocks;
    summary->num_host_hit_tokens += record.num_host_hit_tokens;
    summary->num_spill_writes += record.num_spill_writes;
    summary->num_disk_errors += record.num_disk_errors;
    summary->num_with_replicas += record.num_replicas > 1 ? 1 : 0;
    summary->num_moved += record.num_moved;
    summary->num_rolls += record.num_rolls;
    if (record.violation[0] != '\0') summary->failures.emplace_back(record.seed, record.violation);
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return next;
  summary->failures.emplace_back(next, absl::StrCat("the process ended with status ", status));
  ++summary->num_seeds;
  return next + 1;
}

}  // namespace

std::string Summary::Describe() const {
  uint64_t trace = 0;
  for (const auto& [seed, trace_of_seed] : traces) trace = trace * 31 + trace_of_seed;
  std::string text =
      absl::StrCat(num_seeds, " seeds, ", num_requests, " requests, ", num_faults, " faults, ", num_restarts,
                   " restarts of the coordinator, ", num_adopted_asleep, " of them asleep, ", num_recoveries,
                   " recoveries, ", num_sleeps, " sleeps, ", num_weights_changes, " changes of weights, ",
                   num_resizes, " resizes, ", num_pins, " pins, ", num_swapped_blocks, " blocks swapped, ",
                   num_host_hit_tokens, " cached tokens from host memory, ", num_spill_writes,
                   " writes to the disk, ", num_disk_errors, " errors of it, ", num_with_replicas,
                   " clusters with replicas, ", num_moved, " requests moved between replicas, ", num_rolls,
                   " rolls, ", failures.size(), " failures, trace ", absl::Hex(trace, absl::kZeroPad16));
  for (const auto& [seed, violation] : failures)
    absl::StrAppend(&text, "\n  bazel run //tests/simulation:simulate_cluster -- --seed=", seed,
                    " --verbose  # ", violation);
  return text;
}

Summary RunSeeds(const SeedRange& range, bool verbose, size_t max_failures) {
  Summary summary;
  const uint64_t end = range.first + range.count;
  uint64_t next = range.first;
  while (next < end && summary.failures.size() < max_failures)
    next = RunSome(next, std::min(end, next + kSeedsOfOneProcess), verbose, &summary);
  return summary;
}

}  // namespace somnus::simulation
