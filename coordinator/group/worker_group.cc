#include "coordinator/group/worker_group.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/counted.h"
#include "base/heartbeat.h"
#include "base/log.h"
#include "base/running_clock.h"
#include "base/status_macros.h"
#include "coordinator/executor/transition_speeds.h"
#include "coordinator/group/device_name.h"
#include "coordinator/group/load_plan.h"
#include "proto/options_digest.h"

namespace somnus {
namespace {

constexpr absl::Duration kEndTimeout = absl::Seconds(2);     // for the replies to Shutdown
constexpr absl::Duration kStatusTimeout = absl::Seconds(2);  // as of RankStatuses

ExecutorOptions MakeExecutorOptions(const Flags& flags) {
  ExecutorOptions options;
  options.now = RunningNow;  // without the time for which this process stood still: no rank's fault
  // A worker that may be silent for longer may be busy for longer, too.
  for (absl::Duration* timeout :
       {&options.connect_timeout, &options.fence_timeout, &options.load_timeout, &options.checksum_timeout,
        &options.lifecycle_timeout, &options.transition_timeout, &options.measured_timeout})
    *timeout = std::max(*timeout, flags.engine.hang_timeout);
  options.way_to_longer_deadlines =
      absl::StrCat("a longer --hang-timeout (now ", absl::FormatDuration(flags.engine.hang_timeout),
                   ") gives workers more time");
  options.speeds = std::make_shared<TransitionSpeeds>();
  options.prefetch_cpu_share = flags.prefetch_cpu_share;
  options.num_stages = flags.pipeline_parallel_size;
  // No exit status of a remote worker will follow its broken connection, so there is little to wait for.
  if (!flags.local_workers) options.blame_grace = absl::Milliseconds(50);
  return options;
}

// By rank: a shard is a rank's.
std::vector<std::string> OptionsDigests(v1::LoadModelRequest request, int32_t world_size) {
  std::vector<std::string> digests;
  request.mutable_parallel()->set_world_size(world_size);
  for (int32_t rank = 0; rank < world_size; ++rank) {
    request.mutable_parallel()->set_rank(rank);
    digests.push_back(OptionsDigest(request));
  }
  return digests;
}

}  // namespace

WorkerGroup::WorkerGroup(const Flags& flags)
    : flags_(flags),
      pool_(flags, {.on_loss = [this](const absl::Status& status) { current_.ReportLoss(status); },
                    .on_stall = [this](const absl::Status& status) { OnStall(status); }}),
      former_(&flags_, MakeExecutorOptions(flags), &pool_, &current_) {}

absl::Status WorkerGroup::Start(const ModelConfig& config, int32_t max_model_len,
                                const std::string& fingerprint, int64_t weights_version) {
  RETURN_IF_ERROR(current_.Interruption());
  v1::LoadModelRequest load = MakeLoadRequest(flags_, config, max_model_len);
  load.set_weights_version(weights_version);
  AdoptionTerms terms;
  terms.checkpoint_fingerprint = fingerprint;
  terms.options_digests = OptionsDigests(load, flags_.world_size);
  terms.weights_version = load.weights_version();
  former_.SetLoad(std::move(load), AttentionReachOf(flags_, config));
  v1::GroupFile group;
  group.set_world_size(flags_.world_size);
  group.set_model_path(flags_.model);
  group.set_options_digest(terms.options_digests[0]);
  return pool_.Start(std::move(terms), group);
}

absl::StatusOr<KvPlan> WorkerGroup::Load() {
  ASSIGN_OR_RETURN(std::shared_ptr<GroupEpoch> epoch, former_.Form({}));
  former_.NoteServing();
  auto executor = std::make_unique<GrpcExecutor>(
      std::move(epoch),
      [this](const Held& held, bool restart) {
        absl::MutexLock lock(&mu_);
        wanted_ = Wanted{.held = held, .restart = restart};
      },
      [this](const absl::Status& reason) { Interrupt(reason); },
      [this](const absl::Status& reason) {
        absl::MutexLock lock(&mu_);
        wanted_ = Wanted{.given_up = reason};
      });
  {
    absl::MutexLock lock(&mu_);
    executor_ = std::move(executor);
  }
  pool_.NoteServing();
  healer_ = std::thread([this] { HealLoop(); });
  return former_.plan();
}

std::string WorkerGroup::cpu_isa() const {
  const v1::RegisterRequest first = pool_.Members().front();
  return first.device_type() == v1::DEVICE_TYPE_CPU ? first.cpu_isa() : "";
}

void WorkerGroup::HealLoop() {
  const Heartbeat heartbeat(ReplicaPrefix(flags_), "recovery of the workers");
  while (true) {
    heartbeat.Beat();
    Wanted wanted;
    {
      const Heartbeat::Wait rest(absl::InfiniteDuration());  // the parts of a recovery announce bounds
      absl::MutexLock lock(&mu_);
      const auto asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return wanted_.has_value() || stop_healing_;
      };
      mu_.Await(absl::Condition(&asked));
      if (!wanted_.has_value()) return;
      wanted = *wanted_;
      wanted_.reset();
    }
    if (wanted.restart) EndWorkers();
    absl::StatusOr<std::shared_ptr<GroupEpoch>> epoch =
        wanted.given_up.ok() ? former_.Form(wanted.held) : wanted.given_up;
    if (epoch.ok()) {
      LogInfo("{}epoch {}: the group of {} is whole", ReplicaPrefix(flags_), former_.number(),
              Counted(flags_.world_size, "worker"));
      executor_->Serve(*std::move(epoch), former_.held());
    } else {
      const bool ended = EndGivenUp();
      executor_->GiveUp(epoch.status(), ended);
    }
  }
}

// The next epoch replaces the workers. Workers count as lost before they are asked to end, so that their end
// is no news.
void WorkerGroup::EndWorkers() {
  for (int rank = 0; rank < flags_.world_size; ++rank) {
    pool_.Discard(rank, absl::CancelledError(absl::StrCat("rank ", rank, " is restarted")));
  }
  const std::shared_ptr<GroupEpoch> epoch = current_.Take();  // nobody calls an epoch that was shut down
  if (epoch != nullptr) epoch->Shutdown(kEndTimeout);
}

bool WorkerGroup::EndGivenUp() {
  if (!flags_.local_workers || !current_.Interruption().ok()) return false;
  EndWorkers();
  const absl::Status ended = pool_.EndDiscarded();
  if (!ended.ok()) LogError("{}{}", ReplicaPrefix(flags_), std::string(ended.message()));
  return ended.ok();
}

void WorkerGroup::OnStall(const absl::Status& stall) {
  absl::MutexLock lock(&mu_);
  if (executor_ != nullptr) executor_->ReportStall(stall);
}

void WorkerGroup::Interrupt(const absl::Status& reason) {
  current_.Interrupt(reason);
  pool_.Interrupt(reason);
  current_.ReportLoss(reason);
}

absl::StatusOr<ModelChecksums> WorkerGroup::ChecksumWeights() {
  const std::shared_ptr<GroupEpoch> epoch = current_.Get();
  if (epoch == nullptr) return absl::UnavailableError("the workers are being replaced");
  ModelChecksums ranks;
  const int32_t stage_ranks = flags_.world_size / flags_.pipeline_parallel_size;
  for (const absl::StatusOr<v1::ChecksumWeightsResponse>& response : epoch->ChecksumWeights()) {
    RETURN_IF_ERROR(response.status());
    const auto index = static_cast<int32_t>(ranks.size());
    RankChecksums rank = {.replica = flags_.replica,
                          .rank = index,
                          .stage = index / stage_ranks,
                          .rank_of_stage = index % stage_ranks,
                          .weights_version = response->weights_version()};
    if (!ranks.empty() && ranks.front().weights_version != rank.weights_version)
      return absl::AbortedError("the weights have changed meanwhile");
    for (const v1::WeightChecksum& tensor : response->weights())
      rank.tensors.push_back({tensor.name(), tensor.bytes(), tensor.checksum()});
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

std::vector<v1::RankStatus> WorkerGroup::RankStatuses() {
  const std::shared_ptr<GroupEpoch> epoch = current_.Get();
  std::vector<v1::RankStatus> ranks;
  if (epoch == nullptr) return ranks;
  const std::vector<v1::RegisterRequest> members = pool_.Members();
  const auto statuses = epoch->RankStatuses(kStatusTimeout);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    v1::RankStatus status;
    status.set_rank(static_cast<int32_t>(rank));
    status.set_replica(flags_.replica);
    status.set_host(members[rank].host());
    status.set_pid(members[rank].pid());
    status.set_device(
        absl::StrCat(DeviceName(members[rank].device_type()), ":", members[rank].device_index()));
    if (statuses[rank].ok()) {
      *status.mutable_bytes_by_tag() = statuses[rank]->bytes_by_tag();
      *status.mutable_host_bytes_by_tag() = statuses[rank]->host_bytes_by_tag();
      *status.mutable_file_bytes_by_tag() = statuses[rank]->file_bytes_by_tag();
      status.set_rss_bytes(statuses[rank]->rss_bytes());
      status.set_graph_bytes(statuses[rank]->graph_bytes());
      status.set_state(statuses[rank]->state());
      status.set_sleep_level(statuses[rank]->sleep_level());
      status.set_weights_version(statuses[rank]->weights_version());
      status.set_weight_types(statuses[rank]->weight_types());
      status.set_numa(statuses[rank]->numa());
      if (statuses[rank]->has_transition()) *status.mutable_transition() = statuses[rank]->transition();
    } else if (absl::IsDeadlineExceeded(statuses[rank].status())) {
      status.set_error(absl::StrCat("no reply within ", absl::FormatDuration(kStatusTimeout)));
    } else {
      status.set_error(std::string(statuses[rank].status().message()));
    }
    ranks.push_back(std::move(status));
  }
  return ranks;
}

void WorkerGroup::Stop() {
  const std::shared_ptr<GroupEpoch> epoch = current_.Take();
  if (epoch != nullptr) {
    epoch->Shutdown(kEndTimeout);
    // Nobody else ends the epoch any more, and a recovery may be waiting for a hanging worker of the epoch.
    epoch->ReportLoss(absl::CancelledError("stopped"));
  }
  EndHealing();
  pool_.Stop();
  EndExecutor();
}

void WorkerGroup::Leave() {
  EndHealing();
  const std::shared_ptr<GroupEpoch> epoch = current_.Take();  // Stop, which may follow, calls nobody
  EndExecutor();  // while the workers still have a coordinator: no step's stream is open afterwards
  pool_.Leave();
}

void WorkerGroup::EndHealing() {
  {
    absl::MutexLock lock(&mu_);
    stop_healing_ = true;
  }
  Interrupt(absl::CancelledError("stopped"));
  if (healer_.joinable()) healer_.join();
}

void WorkerGroup::EndExecutor() {
  std::unique_ptr<GrpcExecutor> executor;
  absl::MutexLock lock(&mu_);
  executor = std::move(executor_);
}

}  // namespace somnus
