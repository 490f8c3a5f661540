#include "tests/runner/rank_group.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/fakes/unique_name.h"
#include "worker/comm/pipeline_communicator.h"
#include "worker/comm/stage_link.h"

namespace somnus {

v1::StepSampling GreedySampling() {
  v1::StepSampling sampling;
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  sampling.set_num_logprobs(-1);
  sampling.set_num_prompt_logprobs(-1);
  return sampling;
}

MakeRankDevice CpuRanks(int threads_per_rank, CpuIsa isa) {
  return [threads_per_rank, isa](int) -> absl::StatusOr<RankDevice> {
    CpuDeviceOptions options{.num_threads = threads_per_rank, .spin = false, .isa = isa};
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::CreateCpu(options));
    return RankDevice{MakeHostVmmDriver(), std::move(device), nullptr};
  };
}

template <typename F>
absl::Status RankGroup::OnAllRanks(F f) {
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 1; rank < ranks_.size(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = f(static_cast<int>(rank)); });
  }
  statuses[0] = f(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Load(const std::string& path, int world_size,
                                                           const ModelRunnerOptions& options,
                                                           int32_t num_blocks,
                                                           const MakeRankDevice& make_device,
                                                           LoadFormat format) {
  const std::string name = UniqueName();
  auto group = std::make_unique<RankGroup>();
  ASSIGN_OR_RETURN(group->checkpoint_, Checkpoint::Open(path, format));
  group->ranks_.resize(world_size);
  group->num_stages_ = options.pipeline.num_stages;
  RETURN_IF_ERROR(group->OnAllRanks(
      [&](int rank) { return group->LoadRank(rank, world_size, name, options, num_blocks, make_device); }));
  return group;
}

absl::StatusOr<uint64_t> RankGroup::SelfCheck() {
  uint64_t answer = 0;
  RETURN_IF_ERROR(OnAllRanks([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(const uint64_t fingerprint, ranks_[rank].runner->SelfCheck());
    if (rank == sampling_rank()) {
      answer = fingerprint;
    } else if (fingerprint != 0) {
      return absl::InternalError(absl::StrCat("rank ", rank, " answered with a fingerprint"));
    }
    return absl::OkStatus();
  }));
  return answer;
}

absl::Status RankGroup::SleepAndWake(RestoreMode weights) {
  for (Rank& rank : ranks_) {
    RETURN_IF_ERROR(rank.allocator
                        ->Sleep({{"weights", weights},
                                 {"kv_cache", RestoreMode::kDiscard},
                                 {"workspace", RestoreMode::kDiscard}})
                        .status());
    RETURN_IF_ERROR(rank.allocator->WakeUp({}).status());
    if (weights == RestoreMode::kDiscard) RETURN_IF_ERROR(rank.runner->ReloadWeights(*checkpoint_, nullptr));
    RETURN_IF_ERROR(rank.runner->ResetAfterWake());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> RankGroup::JoinRank(int rank, const std::string& group,
                                                                  const RankDevice& device,
                                                                  Device* open) const {
  const int stage_ranks = world_size() / num_stages_, stage = rank / stage_ranks;
  GroupOptions shm;
  shm.group_name = absl::StrCat(group, "-s", stage);
  shm.rank = rank % stage_ranks;
  shm.world_size = stage_ranks;
  shm.spin = false;
  std::unique_ptr<Communicator> communicator;
  if (stage_ranks == 1) {
    communicator = MakeSingleCommunicator();
  } else if (device.join != nullptr) {
    ASSIGN_OR_RETURN(communicator, device.join(shm.group_name, shm.rank, stage_ranks, open));
  } else {
    ASSIGN_OR_RETURN(communicator, MakeShmCommunicator(shm));
  }
  if (num_stages_ == 1) return communicator;
  const auto link = [&](int sender, int end) -> absl::StatusOr<std::unique_ptr<StageLink>> {
    shm.group_name = absl::StrCat(group, "-l", sender);
    shm.rank = end;
    shm.world_size = 2;
    ASSIGN_OR_RETURN(std::unique_ptr<StageLink> host, MakeShmLink(shm));
    return device.join_link == nullptr ? std::move(host) : device.join_link(shm, open, std::move(host));
  };
  std::unique_ptr<StageLink> previous, next;
  if (stage > 0) {
    ASSIGN_OR_RETURN(previous, link(rank - stage_ranks, StageLink::kReceiver));
  }
  if (stage < num_stages_ - 1) {
    ASSIGN_OR_RETURN(next, link(rank, StageLink::kSender));
  }
  return MakePipelineCommunicator(std::move(communicator), std::move(previous), std::move(next));
}

absl::Status RankGroup::LoadRank(int rank, int world_size, const std::string& group,
                                 const ModelRunnerOptions& options, int32_t num_blocks,
                                 const MakeRankDevice& make_device) {
  Rank& r = ranks_[rank];
  ASSIGN_OR_RETURN(RankDevice device, make_device(rank));
  r.driver = std::move(device.driver);
  r.device = std::move(device.device);
  r.allocator = SleepableAllocator::Create(r.driver.get());
  ASSIGN_OR_RETURN(r.communicator, JoinRank(rank, group, device, r.device.get()));
  ModelRunnerOptions own = options;
  own.pipeline.stage = rank / (world_size / num_stages_);
  ASSIGN_OR_RETURN(r.runner, ModelRunner::Load(*checkpoint_, own, r.device.get(), r.communicator.get(),
                                               r.allocator.get(), nullptr));
  // A rank that still loads may wait for the shared device, and so for a rank that profiles already and waits
  // for all ranks in a collective. Real workers need no barrier here: no two share a process or a context.
  RETURN_IF_ERROR(r.communicator->Barrier());
  RETURN_IF_ERROR(r.runner->Profile());
  RETURN_IF_ERROR(r.runner->ProfileGraphs().status());
  // As in the worker: ranks of one process share the emulated device, and a rank that frees memory waits for
  // all work that the other ranks have queued.
  RETURN_IF_ERROR(r.communicator->Barrier());
  return r.runner->AllocateKvCache(num_blocks, num_blocks, /*defer_graphs=*/false);
}

absl::StatusOr<v1::StepReply> RankGroup::Execute(const v1::StepRequest& request) {
  v1::StepReply answer;
  RETURN_IF_ERROR(OnAllRanks([&](int rank) -> absl::Status {
    ASSIGN_OR_RETURN(v1::StepReply reply, ranks_[rank].runner->Execute(request));
    if (rank == sampling_rank()) {
      answer = std::move(reply);
    } else if (reply.tokens_size() > 0 || reply.prompt_logprobs_size() > 0 || reply.pooled_size() > 0) {
      return absl::InternalError(absl::StrCat("rank ", rank, " answered with tokens"));
    }
    return absl::OkStatus();
  }));
  return answer;
}

}  // namespace somnus
