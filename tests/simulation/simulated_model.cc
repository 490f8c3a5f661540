#include "tests/simulation/simulated_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/engine/engine_loop.h"
#include "tests/simulation/simulated_worker.h"

namespace somnus::simulation {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
constexpr int kFirstNumber = 100;  // of the requests of the second model

}  // namespace

SimulatedModel::SimulatedModel(const SharedParts& parts, const ModelPlan& plan,
                               const SharedDevicesOptions& devices, int number)
    : parts_(parts),
      world_(parts.site->world),
      plan_(plan),
      options_(devices),
      number_(number),
      group_(plan.engine.flags) {}

absl::Status SimulatedModel::Load() {
  RETURN_IF_ERROR(LoadGroup());
  EngineOptions options = MakeEngineOptions(plan_.engine, cache_, parts_.site, number_);
  options.residency = group_.residency();
  options.num_mapped_blocks = group_.num_mapped_blocks();
  options.weights = group_.weights();
  options.kv_block_bytes = cache_.kv_block_bytes;
  engine_ = parts_.devices->Add(CountDecisions(), this, [&](EngineObserver* observer) {
    auto loop = std::make_shared<EngineLoop>(options, group_.executor(), observer);
    loop_ = loop.get();
    return loop;
  });
  operator_ = std::make_unique<Operator>(
      parts_.site, parts_.faults, engine_.get(),
      [this](const std::string& what, const absl::Status& status) { Note(what, status); }, number_);
  invariants_ = std::make_unique<Invariants>(
      parts_.site, &plan_.engine.flags, parts_.faults, loop_, std::vector<GrpcExecutor*>{group_.executor()},
      [this] { return operator_->changes_weights(); }, number_);
  engine_->OnStateChange([this] { world_.LookAround([this] { LookAround(); }); });
  return absl::OkStatus();
}

absl::Status SimulatedModel::LoadGroup() {
  const Flags& flags = plan_.engine.flags;
  ModelConfig config{.vocab_size = parts_.site->model.vocab_size, .stored_type = StorageType::kF32};
  RETURN_IF_ERROR(group_.Start(config, flags.max_model_len, FilesOf(flags.model)));
  if (!flags.local_workers) parts_.fleet->StartRemote(flags, number_);
  RETURN_IF_ERROR(parts_.devices->MakeRoom());
  ASSIGN_OR_RETURN(cache_, group_.Load());
  return absl::OkStatus();
}

SharingModel SimulatedModel::CountDecisions() {
  SharingModel sharing = plan_.sharing;
  sharing.kv_block_bytes = cache_.kv_block_bytes;
  sharing.on_decision = [this](const ResidencyDecision& decision) {
    ++counts_[absl::StrCat("decisions to ", ResidencyActionName(decision.action))];
  };
  sharing.on_resize = [this](bool, KvResizeReason) { ++counts_["resizes"]; };
  return sharing;
}

std::vector<uint64_t> SimulatedModel::BeginServing(absl::Duration span) {
  Random& random = world_.random();
  for (int64_t i = random.Between(2, 6); i > 0; --i) {
    const int number = number_ * kFirstNumber + static_cast<int>(i);
    clients_.push_back(std::make_shared<Client>(parts_.site, number, number_));
  }
  std::vector<uint64_t> threads;
  const int process = world_.current_process();
  for (const std::shared_ptr<Client>& client : clients_) {
    threads.push_back(world_.Spawn(
        process, [this, client, span] { Ask(parts_.site, engine_.get(), client, options_.arrivals, span); }));
  }
  operates_ = true;
  threads.push_back(world_.Spawn(process, [this, span] { Operate(span); }));
  return threads;
}

bool SimulatedModel::HaveEnded() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) { return client->ended(); });
}

void SimulatedModel::Operate(absl::Duration span) {
  operator_->Work(span);
  EndOperating();
  while (!parts_.all_ended()) {
    world_.Sleep(kLook);
    if (!NeedsHelp()) continue;
    operates_ = true;
    Help();
    EndOperating();
  }
}

void SimulatedModel::EndOperating() {
  operates_ = false;
  operated_until_ = world_.now();
}

bool SimulatedModel::may_stay() const {
  return operates_ || world_.now() < operated_until_ + options_.operator_wait || loop_->Stats().only_copy;
}

// An operator helps where requests cannot wake a model, and where a model cannot give way by a sleep.
bool SimulatedModel::NeedsHelp() const {
  const EngineStats stats = engine_->Stats();
  const bool lacks_weights = stats.residency.weights_stale() || stats.needs_weights;
  const bool is_held = stats.state == EngineState::kAsleep && !stats.request_wakes;
  return CannotGiveWay(stats) || lacks_weights || is_held || stats.paused;
}

bool SimulatedModel::CannotGiveWay(const EngineStats& stats) const {
  return stats.only_copy && options_.residency.host_memory_budget < kNoBudget;
}

void SimulatedModel::Help() {
  if (CannotGiveWay(engine_->Stats())) return operator_->ReloadCheckpoint();
  operator_->MakeAwake();
}

void SimulatedModel::Note(const std::string& what, const absl::Status& status) {
  world_.Log(absl::StrCat(plan_.sharing.name, ": ", what, ": ",
                          status.ok() ? "done" : std::string(status.message())));
  if (!status.ok() && !MayFail(what, status))
    world_.Violate(absl::StrCat(plan_.sharing.name, ": ", what, ": ", status.ToString()));
}

bool SimulatedModel::MayFail(const std::string& what, const absl::Status& status) const {
  if (parts_.errors_of_faults->Explain(status)) return true;
  const bool is_late = absl::StrContains(status.message(), "no room within") ||
                       absl::StrContains(status.message(), "is not awake within");
  if (absl::IsUnavailable(status) && is_late)
    return parts_.others_stay(number_) || parts_.faults->num_struck() > 0;
  if (absl::IsResourceExhausted(status) && absl::StrContains(status.message(), "--host-memory-budget"))
    return options_.residency.host_memory_budget < kNoBudget;
  if (absl::IsAborted(status) || absl::IsFailedPrecondition(status)) return true;
  return what == "Update" && parts_.faults->num_struck() > 0;  // a loss ends an update
}

void SimulatedModel::LookAround() {
  invariants_->CheckState();
  parts_.invariants->CheckHostMemory();
  const EngineState state = loop_->state();
  if (state == EngineState::kRecovering) parts_.faults->StrikeAgain();
  if (state == EngineState::kAsleep && loop_->Stats().residency.fully_asleep())
    parts_.invariants->CheckAsleep(number_);
}

void SimulatedModel::CheckQuiet() {
  const EngineStats stats = loop_->Stats();
  if (num_finished_ != static_cast<int64_t>(clients_.size()))
    world_.Violate(absl::StrCat(clients_.size(), " requests were made, and ", num_finished_, " have ended"));
  if (stats.num_running + stats.num_waiting > 0) world_.Violate("sequences are left");
  if (stats.used_blocks != 0) world_.Violate(absl::StrCat(stats.used_blocks, " blocks are left"));
  CheckSleepsIfIdle(stats);
  world_.LookAround([this] { invariants_->CheckResidency(/*quiet=*/true); });
}

// A request that was counted and not given back would keep the model awake for ever.
void SimulatedModel::CheckSleepsIfIdle(const EngineStats& stats) {
  const bool may_stay = plan_.sharing.pinned || plan_.sharing.idle_sleep == absl::InfiniteDuration() ||
                        stats.only_copy || parts_.faults->memory_fails();
  if (!may_stay && stats.state != EngineState::kAsleep)
    world_.Violate(
        absl::StrCat(plan_.sharing.name, " has nothing to do, and is ", EngineStateName(stats.state)));
}

void SimulatedModel::Drain(absl::Duration grace) {
  engine_->DrainAndStop(grace);
  engine_->OnStateChange(nullptr);
}

void SimulatedModel::Count(Counts* counts) const {
  for (const auto& [name, count] : counts_) (*counts)[name] += count;
  (*counts)["requests"] += static_cast<int64_t>(clients_.size());
  (*counts)["sleeps"] += operator_->num_sleeps();
  (*counts)["changes of weights"] += operator_->num_weights_changes();
}

}  // namespace somnus::simulation
