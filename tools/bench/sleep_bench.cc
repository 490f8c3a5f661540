// sleep_bench: how long sleep and wake-up take, split into phases, beside what the machine's page faults,
// copies and disk allow.
//
//   sleep_bench [--weights-bytes=BYTES] [--kv-bytes=BYTES] [--threads=N] [--spill-dir=DIR] [--json]
//
// Every round measures the floors and then each backup policy, so that both see the same machine. A wake-up's
// floor is its memory faulted in by all threads and then the weights copied by all threads; where the weights
// keep their pages (release, on a host) it can take less.

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "allocator/piece_codec.h"
#include "base/cpus.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "tools/bench/machine_probe.h"
#include "tools/bench/sleep/allocator_phases.h"
#include "tools/bench/sleep/memory_floors.h"

namespace somnus {
namespace {

struct BenchFlags {
  int64_t weights_bytes = 256 << 20;
  int64_t kv_bytes = 1 << 30;
  int32_t threads = 0;
  int32_t rounds = 5;
  std::string spill_dir;
  bool json = false;
};

FlagTable Table(BenchFlags* f) {
  FlagTable table;
  table.program = "sleep_bench";
  table.usage = "sleep_bench [flags]";
  table.about = "Times sleep and wake-up by phase, beside the speed of page faults, copies and the disk.";
  table.groups = {
      {"Flags",
       {Flag::Bytes("weights-bytes", &f->weights_bytes, 2 << 20, int64_t{1} << 40, "memory that is saved"),
        Flag::Bytes("kv-bytes", &f->kv_bytes, 2 << 20, int64_t{1} << 40, "memory that is discarded"),
        Flag::Int("threads", &f->threads, 0, 1024, "for page faults and copies; 0: the CPUs, at most 4"),
        Flag::Int("rounds", &f->rounds, 1, 1000, "times that all is measured"),
        Flag::Text("spill-dir", &f->spill_dir,
                   "directory for backups in a file; without one they are left out")
            .Shows("DIR"),
        Flag::Switch("json", &f->json, "print JSON, with every round")}}};
  return table;
}

absl::Status Run(const BenchFlags& flags) {
  AllocatorPhasesOptions options;
  options.weights_bytes = flags.weights_bytes;
  options.kv_bytes = flags.kv_bytes;
  options.threads = flags.threads > 0 ? flags.threads : std::min(NumAllowedCpus(), 4);
  options.spill_dir = flags.spill_dir;
  std::vector<BackupPolicy> policies = {BackupPolicy::kRetain, BackupPolicy::kRelease};
  if (!flags.spill_dir.empty()) policies.push_back(BackupPolicy::kFile);
  if (CheckCompression().ok()) policies.push_back(BackupPolicy::kCompress);
  PhaseTable table;
  const std::string before = ToString(ProbeMachine());
  for (int round = 0; round < flags.rounds; ++round) {
    ASSIGN_OR_RETURN(const SleepFloors floors,
                     MeasureFloors(flags.weights_bytes + flags.kv_bytes, options.threads, flags.spill_dir));
    table.AddFloors(floors);
    for (const BackupPolicy policy : policies)
      RETURN_IF_ERROR(MeasureAllocator(policy, options, floors, &table));
  }
  const std::string after = ToString(ProbeMachine());
  if (flags.json) {
    nlohmann::json json = table.ToJson();
    json["threads"] = options.threads;
    json["machine"] = {before, after};
    std::printf("%s\n", json.dump(1).c_str());
  } else {
    std::printf("before: %s\n%d threads, %d rounds\n%safter: %s\n", before.c_str(), options.threads,
                flags.rounds, table.ToText().c_str(), after.c_str());
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::BenchFlags flags;
  if (const auto code = somnus::ParseCommandLine(somnus::Table(&flags), argc, argv); code.has_value())
    return *code;
  const absl::Status status = somnus::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "sleep_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
