#include "tools/bench/sleep/engine_phases.h"

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "tools/bench/median.h"
#include "tools/bench/sleep/backup_phases.h"
#include "tools/bench/sleep/memory_floors.h"
#include "tools/bench/sleep/prefetch_phases.h"
#include "tools/bench/sleep/switch_phases.h"
#include "tools/bench/sleep/weight_update.h"

namespace somnus {
namespace {

constexpr int kFirstTokens = 5;  // of an engine that never slept

int64_t SumOf(const std::map<std::string, int64_t>& bytes_by_tag) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : bytes_by_tag) sum += bytes;
  return sum;
}

class EngineRound {
 public:
  EngineRound(const EnginePhasesOptions& phases, PhaseTable* table)
      : phases_(phases),
        options_(phases.engine),
        section_(absl::StrCat("engine, ", options_.workers, options_.workers == 1 ? " worker" : " workers")),
        table_(table) {}

  absl::Status Run() {
    RETURN_IF_ERROR(MeasureUndisturbed());
    ASSIGN_OR_RETURN(floors_, MeasureFloors(bytes_, phases_.threads, ""));
    table_->AddFloors(floors_);
    ASSIGN_OR_RETURN(engine_, ServedEngine::Start(options_));
    RETURN_IF_ERROR(SleepAndWake(1, "first"));
    RETURN_IF_ERROR(SleepAndWake(1, "second"));
    RETURN_IF_ERROR(SleepAndWake(2, "level 2"));
    // Refused where there is no checkpoint to read: random weights.
    const absl::StatusOr<double> reload = engine_->ReloadWeights();
    if (reload.ok()) table_->Add(section_, "weights read again, awake", weights_bytes_, *reload);
    RETURN_IF_ERROR(UpdateWeights());
    engine_.reset();
    if (phases_.switches) {
      const SwitchFloors floors = {bytes_, switch_floor_, undisturbed_};
      RETURN_IF_ERROR(MeasureSwitches(options_, floors, phases_.turns, table_));
      RETURN_IF_ERROR(MeasurePrefetch(options_, bytes_, phases_.turns, table_));
    }
    return phases_.backups ? MeasureBackups(options_, phases_.spill_dir, table_) : absl::OkStatus();
  }

 private:
  // An engine that has not slept, and the bytes of the engine's memory, which a sleep at level 2 names.
  absl::Status MeasureUndisturbed() {
    ASSIGN_OR_RETURN(const std::unique_ptr<ServedEngine> engine, ServedEngine::Start(options_));
    table_->Add(section_, "cold start, to the first token", 0, engine->cold_start_seconds());
    std::vector<double> seconds;
    for (int i = 0; i < kFirstTokens; ++i) {
      ASSIGN_OR_RETURN(seconds.emplace_back(), engine->FirstToken());
    }
    undisturbed_ = Median(seconds);
    table_->Add(section_, "first token, never slept", 0, undisturbed_);
    ASSIGN_OR_RETURN(const MeasuredTransition slept, engine->Sleep(2));
    bytes_ = SumOf(slept.freed);
    if (const auto weights = slept.freed.find(kWeightsTag); weights != slept.freed.end())
      weights_bytes_ = weights->second;
    table_->AddQuantity(section_, "memory under all tags", "MB", 1e-6 * static_cast<double>(bytes_));
    table_->AddQuantity(section_, "of it weights", "MB", 1e-6 * static_cast<double>(weights_bytes_));
    return absl::OkStatus();
  }

  absl::Status SleepAndWake(int level, const std::string& name) {
    ASSIGN_OR_RETURN(const int64_t awake, engine_->WorkersPss());
    ASSIGN_OR_RETURN(const MeasuredTransition slept, engine_->Sleep(level));
    ASSIGN_OR_RETURN(const int64_t asleep, engine_->WorkersPss());
    ASSIGN_OR_RETURN(const MeasuredTransition woken, engine_->WakeUp());
    ASSIGN_OR_RETURN(const double first_token, engine_->FirstToken());
    const std::string sleep = absl::StrCat("sleep, ", name), wake = absl::StrCat("wake-up, ", name);
    // Weights that are reported as freed may stay in place, as with --backup=release on a CPU.
    const int64_t moved = awake - asleep + (IsCopied(slept) ? weights_bytes_ : 0);
    const double sleep_floor = FloorOf(slept, moved, floors_.release);
    const double wake_floor = FloorOf(woken, moved, floors_.fault);
    AddTransition(sleep, slept, SumOf(slept.freed), sleep_floor);
    AddTransition(wake, woken, SumOf(woken.mapped), wake_floor);
    if (level == 1) switch_floor_ = sleep_floor + wake_floor;
    table_->Add(section_, absl::StrCat("first token, ", name), 0, first_token, undisturbed_);
    table_->AddQuantity(section_, absl::StrCat("released by ", sleep), "MB",
                        1e-6 * static_cast<double>(awake - asleep));
    table_->AddQuantity(section_, absl::StrCat("held by the workers after ", sleep), "MB",
                        1e-6 * static_cast<double>(asleep));
    return absl::OkStatus();
  }

  // Updates weights like a trainer. Random weights have no tensors to send, and an engine refuses floats for
  // weights that are computed as they are stored: the phase is then left out, and stderr says why.
  absl::Status UpdateWeights() {
    const auto checkpoint = Checkpoint::Open(options_.model);
    if (!checkpoint.ok()) return absl::OkStatus();
    for (const auto& [transport, name] :
         {std::pair{WeightTransport::kMessages, "weight update, in messages"},
          {WeightTransport::kDirect, "weight update, in messages to the workers"},
          {WeightTransport::kSharedMemory, "weight update, in shared memory"}}) {
      const absl::StatusOr<MeasuredUpdate> sent =
          SendWeights(engine_->control_port(), **checkpoint, transport);
      if (absl::StrContains(sent.status().message(), "--dequantize")) {
        std::cerr << "sleep_bench: left out: " << sent.status().message() << "\n";
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(sent.status());
      const MeasuredUpdate& update = *sent;
      table_->Add(section_, name, update.bytes, update.seconds,
                  static_cast<double>(update.bytes) / floors_.copy);
      table_->Add(section_, absl::StrCat(name, ": begin"), 0, update.begin);
      table_->Add(section_, absl::StrCat(name, ": tensors"), update.bytes, update.tensors);
      table_->Add(section_, absl::StrCat(name, ": finish"), 0, update.finish);
    }
    return absl::OkStatus();
  }

  double CopySeconds() const { return static_cast<double>(weights_bytes_) / floors_.copy; }
  // Whether weights were copied: else that phase takes microseconds.
  bool IsCopied(const MeasuredTransition& measured) const { return measured.copy > CopySeconds() / 10; }
  // `moved` bytes are released, or faulted in, at `speed`, and the weights are copied if the transition
  // copied them. Reading from a file is not included.
  double FloorOf(const MeasuredTransition& measured, int64_t moved, double speed) const {
    const double floor = static_cast<double>(moved) / speed;
    return IsCopied(measured) ? floor + CopySeconds() : floor;
  }

  // Time that no rank took is the coordinator's: steps that end, calls, the answer.
  void AddTransition(const std::string& name, const MeasuredTransition& measured, int64_t bytes,
                     double floor) {
    table_->Add(section_, name, bytes, measured.seconds, floor);
    const std::pair<const char*, double> parts[] = {
        {"prepare", measured.prepare}, {"copy", measured.copy},     {"map", measured.map},
        {"read", measured.read},       {"commit", measured.commit}, {"release", measured.release}};
    for (const auto& [part, seconds] : parts) {
      if (seconds > 0) table_->Add(section_, absl::StrCat(name, ": ", part), 0, seconds);
    }
    table_->Add(section_, absl::StrCat(name, ": beside the ranks"), 0,
                measured.seconds - measured.prepare - measured.commit);
  }

  const EnginePhasesOptions& phases_;
  const ServedEngineOptions& options_;
  const std::string section_;
  PhaseTable* const table_;
  std::unique_ptr<ServedEngine> engine_;
  SleepFloors floors_;
  double undisturbed_ = 0;   // seconds to a first token of an engine that never slept
  double switch_floor_ = 0;  // of a sleep at level 1 and a wake-up
  int64_t bytes_ = 0, weights_bytes_ = 0;
};

}  // namespace

absl::Status MeasureEngine(const EnginePhasesOptions& options, PhaseTable* table) {
  return EngineRound(options, table).Run();
}

}  // namespace somnus
