// The worker with faults on demand, on CPUs (tests/cluster/poison_test.py, transition_faults_test.py).
// Never shipped.
//
// SOMNUS_FAULTS names a file, which need not exist; the worker reads the file when the process starts, when a
// model is loaded, and at the moments of transitions. Each line is one fault:
//   at MOMENT ...      of a transition, see tests/worker/moments.h
//   start-exit         the process ends before it has registered
//   start-hang[@RANK]  the process stays and never registers
//   load-exit          the process ends in the middle of a load
//   load-fail          the load ends with an error
//   load-wait          the load begins once the file does not say this any longer
//   ACTION[@RANK] IDS  a step fails that brings a new sequence whose prompt contains the token ids IDS
//                      (5,6,7) in this order: the process aborts ("abort"), the step never ends ("hang"), or
//                      it ends with an error ("fail"); on every rank, or on one

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tests/worker/faulty_memory.h"
#include "tests/worker/faulty_spill_io.h"
#include "tests/worker/moments.h"
#include "worker/runner/model_runner.h"
#include "worker/worker_main.h"

namespace somnus {
namespace {

constexpr int kFaultExitCode = 7;
constexpr absl::Duration kFaultPoll = absl::Milliseconds(5);

struct Fault {
  std::string action;
  int rank = -1;  // -1: every rank
  std::vector<int32_t> token_ids;
};

Fault ParseFault(const std::string& line) {
  std::istringstream words(line);
  std::string action, ids;
  words >> action >> ids;
  Fault fault;
  const std::pair<std::string, std::string> parts = absl::StrSplit(action, absl::MaxSplits('@', 1));
  fault.action = parts.first;
  if (!parts.second.empty()) SOMNUS_CHECK(absl::SimpleAtoi(parts.second, &fault.rank));
  for (const auto id : absl::StrSplit(ids, ',', absl::SkipEmpty()))
    SOMNUS_CHECK(absl::SimpleAtoi(id, &fault.token_ids.emplace_back()));
  return fault;
}

std::vector<Fault> ReadFaults() {
  std::vector<Fault> faults;
  const char* path = getenv("SOMNUS_FAULTS");
  if (path == nullptr) return faults;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && !absl::StartsWith(line, "at ")) faults.push_back(ParseFault(line));
  }
  return faults;
}

bool HasFault(const std::vector<Fault>& faults, const std::string& action) {
  return std::any_of(faults.begin(), faults.end(),
                     [&action](const Fault& fault) { return fault.action == action; });
}

// Whether the worker of this command line is to hang before the registration.
bool HangsAtStart(const std::vector<Fault>& faults, const std::vector<std::string>& arguments) {
  return std::any_of(faults.begin(), faults.end(), [&](const Fault& fault) {
    if (fault.action != "start-hang") return false;
    const std::string rank = absl::StrCat("--rank=", fault.rank);
    return fault.rank == -1 || std::find(arguments.begin(), arguments.end(), rank) != arguments.end();
  });
}

bool PromptContains(const v1::NewSequence& sequence, const std::vector<int32_t>& token_ids) {
  const auto begin = sequence.token_ids().begin(), end = begin + sequence.num_prompt_tokens();
  return std::search(begin, end, token_ids.begin(), token_ids.end()) != end;
}

absl::Status Suffer(const Fault& fault) {
  if (fault.action == "abort") abort();
  if (fault.action == "hang") absl::Notification().WaitForNotification();
  return absl::InternalError("a fault was injected into this step");
}

// The real runner, but for the faults.
class FaultyRunner : public ModelRunner {
 public:
  FaultyRunner(std::unique_ptr<ModelRunner> runner, int rank, std::vector<Fault> faults)
      : runner_(std::move(runner)), rank_(rank), faults_(std::move(faults)) {}

  int64_t kv_block_bytes() const override { return runner_->kv_block_bytes(); }
  std::string weight_types() const override { return runner_->weight_types(); }
  absl::Status Profile() override { return runner_->Profile(); }
  absl::StatusOr<GraphReport> ProfileGraphs() override { return runner_->ProfileGraphs(); }
  absl::Status AllocateKvCache(int32_t num_blocks, int32_t num_mapped_blocks, bool defer_graphs) override {
    return runner_->AllocateKvCache(num_blocks, num_mapped_blocks, defer_graphs);
  }
  absl::Status ResizeKvCache(int32_t num_mapped_blocks) override {
    return runner_->ResizeKvCache(num_mapped_blocks);
  }
  absl::Status SwapBlocks(SwapDirection direction, const KvHostPool& pool,
                          absl::Span<const BlockSwap> swaps) override {
    return runner_->SwapBlocks(direction, pool, swaps);
  }
  absl::Status BeginEpoch() override { return runner_->BeginEpoch(); }
  absl::StatusOr<std::unique_ptr<PendingStep>> Launch(const v1::StepRequest& request) override {
    for (const v1::NewSequence& sequence : request.new_sequences()) {
      for (const Fault& fault : faults_) {
        const bool here = fault.rank == -1 || fault.rank == rank_;
        if (here && !fault.token_ids.empty() && PromptContains(sequence, fault.token_ids))
          return Suffer(fault);
      }
    }
    return runner_->Launch(request);
  }
  void SetMaskSource(StepMaskSource* source) override { runner_->SetMaskSource(source); }
  absl::StatusOr<uint64_t> SelfCheck() override { return runner_->SelfCheck(); }
  std::vector<WeightPiece> weight_pieces() const override { return runner_->weight_pieces(); }
  absl::Status CheckReload(const Checkpoint& checkpoint) const override {
    return runner_->CheckReload(checkpoint);
  }
  absl::StatusOr<std::unique_ptr<UpdatedTensors>> BeginWeightUpdate(bool needs_all) override {
    return runner_->BeginWeightUpdate(needs_all);
  }
  absl::Status ReloadWeights(const Checkpoint& checkpoint, const Progress& progress) override {
    RETURN_IF_ERROR(Reach("read"));
    return runner_->ReloadWeights(checkpoint, progress);
  }
  std::shared_ptr<const AdapterReader> adapter_reader() const override { return runner_->adapter_reader(); }
  void AddReadAdapters(std::vector<std::shared_ptr<const HostAdapter>> adapters) override {
    runner_->AddReadAdapters(std::move(adapters));
  }
  absl::Status CheckAdapters(absl::Span<const v1::WorkerAdapter> adapters) const override {
    return runner_->CheckAdapters(adapters);
  }
  absl::Status SetAdapters(absl::Span<const v1::WorkerAdapter> adapters) override {
    return runner_->SetAdapters(adapters);
  }
  int64_t adapter_host_bytes() const override { return runner_->adapter_host_bytes(); }
  absl::Status ResetAfterWake() override {
    RETURN_IF_ERROR(Reach("reset"));
    return runner_->ResetAfterWake();
  }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  const int rank_;
  const std::vector<Fault> faults_;
};

WorkerParts FaultyWorkerParts() {
  WorkerParts parts = RealWorkerParts();
  parts.open_memory = [open = parts.open_memory](
                          const WorkerOptions& options,
                          int num_threads) -> absl::StatusOr<std::unique_ptr<VmmDriver>> {
    ASSIGN_OR_RETURN(std::unique_ptr<VmmDriver> driver, open(options, num_threads));
    return std::make_unique<FaultyMemory>(std::move(driver));
  };
  parts.open_spill_io = [](int fd, int depth) -> std::unique_ptr<SpillIo> {
    return std::make_unique<FaultySpillIo>(MakeSpillIo(fd, depth));
  };
  parts.load_runner =
      [load = parts.load_runner](
          const Checkpoint& checkpoint, const ModelRunnerOptions& options, Device* device,
          Communicator* communicator, SleepableAllocator* allocator,
          const ModelRunner::Progress& progress) -> absl::StatusOr<std::unique_ptr<ModelRunner>> {
    while (HasFault(ReadFaults(), "load-wait")) absl::SleepFor(kFaultPoll);
    const std::vector<Fault> faults = ReadFaults();
    if (HasFault(faults, "load-exit")) _exit(kFaultExitCode);
    if (HasFault(faults, "load-fail")) return absl::DataLossError("a fault was injected into this load");
    absl::StatusOr<std::unique_ptr<ModelRunner>> runner =
        load(checkpoint, options, device, communicator, allocator, progress);
    if (!runner.ok()) return runner;
    return std::make_unique<FaultyRunner>(*std::move(runner), communicator->rank(), faults);
  };
  return parts;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  const std::vector<somnus::Fault> faults = somnus::ReadFaults();
  if (somnus::HasFault(faults, "start-exit")) return somnus::kFaultExitCode;
  if (somnus::HangsAtStart(faults, {argv, argv + argc})) {
    fprintf(stderr, "this worker hangs before it registers\n");
    pause();
  }
  somnus::SetMomentRank({argv, argv + argc});
  somnus::WatchCalls();
  return somnus::WorkerMain(argc, argv, somnus::FaultyWorkerParts());
}
