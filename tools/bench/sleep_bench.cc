// sleep_bench: how long sleep and wake-up take, split into phases, beside the limits of the machine's page
// faults, copies and disk.
//
//   sleep_bench [--model=PATH] [--workers=N] [--serve-flags=FLAGS] [--spill-dir=DIR] [--json] [--svg=FILE]
//
// For the allocator alone: every round measures the floors and then each backup policy, so that both see the
// same machine. A wake-up's floor is the time to fault in the memory by all threads and then to copy the
// weights by all threads; where the weights keep their pages (release, on a host) a wake-up can take less.
//
// For a whole engine: a coordinator and its workers, started anew in every round (sleep/engine_phases.h).
// Without --model the engine serves the tests' model, where that was fetched.

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "allocator/piece_codec.h"
#include "base/cpus.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "tools/bench/sleep/allocator_phases.h"
#include "tools/bench/sleep/engine_phases.h"
#include "tools/bench/sleep/memory_floors.h"
#include "tools/probe/machine_probe.h"

namespace somnus {
namespace {

// The tests' model, or nothing where that was not fetched.
std::string DefaultModel() {
  const char* const named = getenv("SOMNUS_MODEL");
  const char* const home = getenv("HOME");
  const std::string path = named != nullptr
                               ? named
                               : absl::StrCat(home != nullptr ? home : "",
                                              "/.cache/somnus/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  return access(path.c_str(), R_OK) == 0 ? path : "";
}

struct BenchFlags {
  int64_t weights_bytes = 256 << 20;
  int64_t kv_bytes = 1 << 30;
  int32_t threads = 0;
  int32_t rounds = 5;
  std::string spill_dir;
  bool json = false;
  std::string svg;
  bool allocator = true;
  bool engine = true;
  std::string model = DefaultModel();
  int32_t workers = 2;
  std::string serve_flags;
  bool switches = true;
  int32_t turns = 3;
  bool backups = true;
  std::string somnus;
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
        Flag::Switch("allocator", &f->allocator, "measure the allocator alone, too"),
        Flag::Text("spill-dir", &f->spill_dir,
                   "directory for backups in a file; without one they are left out")
            .Shows("DIR"),
        Flag::Switch("json", &f->json, "print JSON, with every round"),
        Flag::Text("svg", &f->svg, "write a picture of the medians into this file").Shows("FILE")}},
      {"A whole engine",
       {Flag::Switch("engine", &f->engine, "measure an engine, too, where there is a --model"),
        Flag::Text("model", &f->model, "that the engine serves").Shows("PATH"),
        Flag::Int("workers", &f->workers, 1, 64, "local workers of the engine"),
        Flag::Text("serve-flags", &f->serve_flags, "further flags of somnus serve, separated by spaces")
            .Shows("FLAGS"),
        Flag::Switch("switches", &f->switches, "let two models take turns, too"),
        Flag::Int("turns", &f->turns, 1, 1000, "turns of each of the two models"),
        Flag::Switch("backups", &f->backups, "measure each --backup, too"),
        Flag::Text("somnus", &f->somnus, "the program (default: the one of the same build)").Shows("PATH")}}};
  return table;
}

// <bin>/tools/bench/sleep_bench -> <bin>/tools/somnus.
std::string SomnusBesideThis() {
  char self[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", self, sizeof(self));
  if (n <= 0 || n == sizeof(self)) return "somnus";
  std::string folder(self, n);
  for (int up = 0; up < 2; ++up) folder.resize(folder.rfind('/'));
  return absl::StrCat(folder, "/somnus");
}

absl::Status MeasureAllocatorRound(const BenchFlags& flags, int threads, PhaseTable* table) {
  AllocatorPhasesOptions options;
  options.weights_bytes = flags.weights_bytes;
  options.kv_bytes = flags.kv_bytes;
  options.threads = threads;
  options.spill_dir = flags.spill_dir;
  std::vector<BackupPolicy> policies = {BackupPolicy::kRetain, BackupPolicy::kRelease};
  if (!flags.spill_dir.empty()) policies.push_back(BackupPolicy::kFile);
  if (CheckCompression().ok()) policies.push_back(BackupPolicy::kCompress);
  ASSIGN_OR_RETURN(const SleepFloors floors,
                   MeasureFloors(flags.weights_bytes + flags.kv_bytes, threads, flags.spill_dir));
  table->AddFloors(floors);
  for (const BackupPolicy policy : policies)
    RETURN_IF_ERROR(MeasureAllocator(policy, options, floors, table));
  return absl::OkStatus();
}

absl::Status MeasureEngineRound(const BenchFlags& flags, int threads, PhaseTable* table) {
  EnginePhasesOptions options;
  options.engine.program = flags.somnus.empty() ? SomnusBesideThis() : flags.somnus;
  options.engine.model = flags.model;
  options.engine.workers = flags.workers;
  options.engine.flags = absl::StrSplit(flags.serve_flags, ' ', absl::SkipEmpty());
  options.threads = threads;
  options.switches = flags.switches;
  options.turns = flags.turns;
  options.backups = flags.backups;
  options.spill_dir = flags.spill_dir;
  return MeasureEngine(options, table);
}

absl::Status Run(const BenchFlags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : std::min(NumAllowedCpus(), 4);
  PhaseTable table;
  const std::string before = ToString(ProbeMachine());
  for (int round = 0; round < flags.rounds; ++round) {
    if (flags.allocator) RETURN_IF_ERROR(MeasureAllocatorRound(flags, threads, &table));
    if (flags.engine && !flags.model.empty()) RETURN_IF_ERROR(MeasureEngineRound(flags, threads, &table));
  }
  const std::string after = ToString(ProbeMachine());
  if (flags.json) {
    nlohmann::json json = table.ToJson();
    json["threads"] = threads;
    json["machine"] = {before, after};
    std::printf("%s\n", json.dump(1).c_str());
  } else {
    std::printf("before: %s\n%d threads, %d rounds\n%safter: %s\n", before.c_str(), threads, flags.rounds,
                table.ToText().c_str(), after.c_str());
  }
  if (flags.svg.empty()) return absl::OkStatus();
  std::ofstream file(flags.svg);
  file << table.ToSvg() << std::flush;
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", flags.svg));
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
