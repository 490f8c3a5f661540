#include "tests/worker/rejoin_group.h"

#include <iterator>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "tests/fakes/unique_name.h"

namespace somnus {
namespace {

constexpr int kBlockSize = 16;

const std::vector<int32_t> kPrompt = {5, 17, 42, 9};
// The blocks of the sequence, and the host blocks that keep copies.
constexpr int kBlocks[] = {1, 2};
constexpr int kHostBlocks[] = {2, 0};

// The first `num_computed` tokens are in the cache.
void AddSequence(const std::vector<int32_t>& tokens, int32_t num_computed, v1::StepRequest* step) {
  v1::NewSequence* sequence = step->add_new_sequences();
  sequence->mutable_token_ids()->Add(tokens.begin(), tokens.end());
  sequence->set_num_prompt_tokens(static_cast<int32_t>(kPrompt.size()));
  sequence->set_num_computed_tokens(num_computed);
  for (const int block : kBlocks) sequence->add_block_ids(block);
  v1::StepSampling* sampling = step->add_samplings();
  sampling->set_top_p(1);
  sampling->set_repetition_penalty(1);
  sampling->set_num_logprobs(-1);
  sampling->set_num_prompt_logprobs(-1);
  step->add_sequences()->set_num_tokens(static_cast<int32_t>(tokens.size()) - num_computed);
}

}  // namespace

RejoinGroup::RejoinGroup(Options options) : options_(std::move(options)) {
  workers_.resize(options_.world_size);
}

absl::Status RejoinGroup::OnRanks(const std::vector<bool>& ranks,
                                  const std::function<absl::Status(int rank)>& call) {
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank]) threads.emplace_back([&, rank] { statuses[rank] = call(static_cast<int>(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status RejoinGroup::LoadRank(int rank, int sleep_level) {
  v1::LoadModelRequest request;
  request.set_model_path("tests/data/tiny/llama-uneven");
  request.set_dtype(v1::DTYPE_FLOAT32);
  request.set_kv_cache_dtype(v1::DTYPE_FLOAT32);
  request.mutable_parallel()->set_rank(rank);
  request.mutable_parallel()->set_world_size(options_.world_size);
  request.set_max_num_seqs(4);
  request.set_max_num_batched_tokens(32);
  request.set_max_model_len(64);
  request.set_block_size(kBlockSize);
  request.set_batch_invariant(options_.batch_invariant);
  request.mutable_graph_sizes()->Add(options_.graph_sizes.begin(), options_.graph_sizes.end());
  request.set_weights_version(1);
  request.set_group_epoch(epoch_);
  request.set_sleep_level(sleep_level);
  for (const std::string tag : kMemoryTags) {
    if (sleep_level > 0) request.add_asleep_tags(tag);
  }
  return workers_[rank]->LoadModel(request, [](int64_t, int64_t) {}).status();
}

absl::Status RejoinGroup::AllocateRank(int rank, bool defer_graphs) {
  v1::AllocateKvCacheRequest request;
  request.mutable_kv_cache()->set_block_size(kBlockSize);
  request.mutable_kv_cache()->set_num_blocks(options_.num_blocks);
  request.mutable_kv_cache()->set_num_host_blocks(3);
  request.mutable_kv_cache()->set_dtype(v1::DTYPE_FLOAT32);
  request.set_defer_graphs(defer_graphs);
  request.set_group_epoch(epoch_);
  return workers_[rank]->AllocateKvCache(request).status();
}

absl::Status RejoinGroup::Form() {
  const std::vector<bool> all(workers_.size(), true);
  RETURN_IF_ERROR(Recover(0));
  RETURN_IF_ERROR(OnRanks(all, [&](int rank) {
    v1::ProfileRequest request;
    request.set_group_epoch(epoch_);
    return workers_[rank]->Profile(request).status();
  }));
  return OnRanks(all, [&](int rank) { return AllocateRank(rank, /*defer_graphs=*/false); });
}

absl::Status RejoinGroup::Recover(int sleep_level) {
  const bool first = ++epoch_ == 1;
  std::vector<bool> all(workers_.size(), true), lost(workers_.size(), false);
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    lost[rank] = workers_[rank] == nullptr;
    if (lost[rank]) workers_[rank] = options_.new_worker();
  }
  RETURN_IF_ERROR(OnRanks(
      all, [&](int rank) { return workers_[rank]->Fence(epoch_, absl::Seconds(60), [] {}).status(); }));
  RETURN_IF_ERROR(OnRanks(lost, [&](int rank) { return LoadRank(rank, sleep_level); }));
  const std::string name = UniqueName();
  RETURN_IF_ERROR(OnRanks(all, [&](int rank) {
    v1::JoinGroupRequest request;
    request.mutable_parallel()->set_rank(rank);
    request.mutable_parallel()->set_world_size(options_.world_size);
    request.mutable_parallel()->set_group_name(name);
    request.set_group_epoch(epoch_);
    return workers_[rank]->JoinGroup(request);
  }));
  if (first) return absl::OkStatus();
  return OnRanks(lost, [&](int rank) { return AllocateRank(rank, /*defer_graphs=*/true); });
}

absl::Status RejoinGroup::Transit(int rank, int sleep_level, bool keeps) {
  const uint64_t id = ++last_transition_;
  v1::PrepareRequest prepare;
  prepare.set_group_epoch(epoch_);
  prepare.set_operation_id(id);
  prepare.mutable_transition()->set_sleep_level(sleep_level);
  for (size_t i = 0; keeps && i < std::size(kBlocks); ++i) {
    v1::BlockCopy* block = prepare.mutable_transition()->add_kept_blocks();
    block->set_src(kBlocks[i]);
    block->set_dst(kHostBlocks[i]);
  }
  RETURN_IF_ERROR(workers_[rank]->Prepare(prepare));
  v1::CommitRequest commit;
  commit.set_group_epoch(epoch_);
  commit.set_prepare_operation_id(id);
  return workers_[rank]->Commit(commit).status();
}

absl::Status RejoinGroup::Sleep(int level) {
  return OnRanks(std::vector<bool>(workers_.size(), true), [&](int rank) { return Transit(rank, level); });
}

absl::Status RejoinGroup::WakeUp() { return Sleep(0); }

absl::Status RejoinGroup::ResizeKvCache(int num_blocks) {
  v1::ResizeKvCacheRequest request;
  request.set_group_epoch(epoch_);
  request.set_num_blocks(num_blocks);
  return OnRanks(std::vector<bool>(workers_.size(), true),
                 [&](int rank) { return workers_[rank]->ResizeKvCache(request).status(); });
}

absl::StatusOr<v1::StepReply> RejoinGroup::Step(v1::StepRequest request, int absent) {
  request.set_group_epoch(epoch_);
  request.set_step_id(++last_step_);
  std::vector<bool> ranks(workers_.size(), true);
  if (absent >= 0) ranks[absent] = false;
  v1::StepReply first_reply;
  const absl::Status status = OnRanks(ranks, [&](int rank) {
    v1::StepReply reply;
    absl::Notification done;
    workers_[rank]->ExecuteAsync(request, [&](const Worker::AwaitReply& step) {
      reply = step();
      done.Notify();
    });
    done.WaitForNotification();
    if (rank == 0) first_reply = reply;
    return absl::Status(static_cast<absl::StatusCode>(reply.error_code()), reply.error_message());
  });
  RETURN_IF_ERROR(status);
  return first_reply;
}

absl::StatusOr<std::vector<int32_t>> RejoinGroup::Generate(int count, int absent) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    v1::StepRequest step;
    if (i == 0) {
      AddSequence(kPrompt, 0, &step);
    } else {
      step.add_sequences()->set_num_tokens(1);
    }
    ASSIGN_OR_RETURN(const v1::StepReply reply, Step(step, i == 0 ? -1 : absent));
    if (reply.tokens_size() != 1) return absl::InternalError("a step without a token");
    tokens.push_back(reply.tokens(0).token_id());
  }
  v1::StepRequest free_slot;
  free_slot.add_freed_slots(0);
  RETURN_IF_ERROR(Step(free_slot, -1).status());
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> RejoinGroup::GenerateOverSleeps(int count) {
  std::vector<int32_t> known = kPrompt;
  const std::vector<bool> all(workers_.size(), true);
  for (int i = 0; i < count; ++i) {
    v1::StepRequest step, free_slot;
    AddSequence(known, i == 0 ? 0 : static_cast<int32_t>(known.size()) - 1, &step);
    ASSIGN_OR_RETURN(const v1::StepReply reply, Step(step, -1));
    if (reply.tokens_size() != 1) return absl::InternalError("a step without a token");
    known.push_back(reply.tokens(0).token_id());
    free_slot.add_freed_slots(0);
    RETURN_IF_ERROR(Step(free_slot, -1).status());
    for (const int level : {1, 0})
      RETURN_IF_ERROR(OnRanks(all, [&](int rank) { return Transit(rank, level, /*keeps=*/true); }));
  }
  return std::vector<int32_t>(known.begin() + static_cast<int64_t>(kPrompt.size()), known.end());
}

}  // namespace somnus
