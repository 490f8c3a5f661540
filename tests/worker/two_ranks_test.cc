// Two worker processes serve a real (tiny) model, with a coordinator that the test plays.

#include <algorithm>
#include <thread>

#include "absl/status/status.h"
#include "tests/fakes/unique_name.h"
#include "tests/model/weight_chunks.h"
#include "tests/worker/worker_processes.h"

namespace somnus {
namespace {

constexpr char kModel[] = "tests/data/tiny/llama-uneven";

enum class Transport { kSharedMemory, kTcp };

// Two ranks of a tiny model with uneven heads.
class TwoRanks : public testing::TestWithParam<Transport> {
 protected:
  TwoRanks() {
    const std::string flag = "--coordinator=" + coordinator_.address();
    for (int r = 0; r < 2; ++r) {
      processes_.push_back(std::make_unique<Process>(
          std::vector<std::string>{flag, "--threads=1", absl::StrCat("--rank=", r), "--log_level=warning"}));
    }
    stubs_.resize(2);
    for (int i = 0; i < 2; ++i) {
      const v1::RegisterRequest worker = coordinator_.WaitForWorker(i);
      stubs_[worker.preferred_rank()] = Dial(worker);
    }
  }

  // The same call to both ranks at once.
  template <typename Call>
  void Both(const Call& call) {
    grpc::Status statuses[2];
    std::thread other([&] { statuses[1] = call(1); });
    statuses[0] = call(0);
    other.join();
    for (int r = 0; r < 2; ++r)
      EXPECT_TRUE(statuses[r].ok()) << "rank " << r << ": " << statuses[r].error_message();
  }

  void Load() {
    v1::ParallelConfig group;
    group.set_world_size(2);
    group.set_group_name(UniqueName());
    Both([&](int r) { return Fence(r); });
    if (GetParam() == Transport::kTcp) OpenPorts(&group);
    Both([&](int r) { return LoadRank(r); });
    Both([&](int r) { return JoinGroup(r, group); });
    Both([&](int r) { return Profile(r); });
    Both([&](int r) { return AllocateKvCache(r); });
  }

  grpc::Status Fence(int r) {
    grpc::ClientContext context;
    v1::FenceRequest request;
    request.set_group_epoch(1);
    v1::FenceResponse response;
    return stubs_[r]->Fence(&context, request, &response);
  }

  // As if the ranks were on two hosts.
  void OpenPorts(v1::ParallelConfig* group) {
    v1::NewGroupResponse responses[2];
    Both([&](int r) {
      v1::NewGroupRequest request;
      request.set_group_epoch(1);
      request.set_listen_host("127.0.0.1");
      grpc::ClientContext context;
      return stubs_[r]->NewGroup(&context, request, &responses[r]);
    });
    for (const v1::NewGroupResponse& response : responses) {
      group->add_rank_addresses(absl::StrCat("127.0.0.1:", response.port()));
    }
    group->set_group_secret("a secret of the two ranks");
  }

  // Stamps a lifecycle request.
  template <typename Request>
  Request* Stamp(Request* request) {
    request->set_group_epoch(1);
    request->set_operation_id(++last_operation_);
    return request;
  }

  grpc::Status LoadRank(int r) {
    v1::LoadModelRequest request;
    request.set_model_path(std::filesystem::absolute(kModel));
    request.set_backup(backup_);
    request.set_dtype(v1::DTYPE_FLOAT32);
    request.set_kv_cache_dtype(v1::DTYPE_FLOAT32);
    request.mutable_parallel()->set_rank(r);
    request.mutable_parallel()->set_world_size(2);
    request.set_max_num_seqs(4);
    request.set_max_num_batched_tokens(64);
    request.set_max_model_len(64);
    request.set_block_size(16);
    request.set_weights_version(1);
    grpc::ClientContext context;
    auto reader = stubs_[r]->LoadModel(&context, *Stamp(&request));
    v1::LoadModelEvent event;
    while (reader->Read(&event)) {
    }
    EXPECT_TRUE(event.done());
    EXPECT_EQ(event.checkpoint_fingerprint().size(), 64u);
    return reader->Finish();
  }

  grpc::Status JoinGroup(int r, const v1::ParallelConfig& group) {
    v1::JoinGroupRequest request;
    *request.mutable_parallel() = group;
    request.mutable_parallel()->set_rank(r);
    grpc::ClientContext context;
    v1::JoinGroupResponse response;
    return stubs_[r]->JoinGroup(&context, *Stamp(&request), &response);
  }

  grpc::Status Profile(int r) {
    v1::ProfileRequest request;
    grpc::ClientContext context;
    v1::ProfileResponse response;
    const grpc::Status status = stubs_[r]->Profile(&context, *Stamp(&request), &response);
    EXPECT_GT(response.available_kv_cache_memory_bytes(), 0);
    return status;
  }

  grpc::Status AllocateKvCache(int r) {
    v1::AllocateKvCacheRequest request;
    request.mutable_kv_cache()->set_block_size(16);
    request.mutable_kv_cache()->set_num_blocks(8);
    request.mutable_kv_cache()->set_dtype(v1::DTYPE_FLOAT32);
    grpc::ClientContext context;
    v1::AllocateKvCacheResponse response;
    return stubs_[r]->AllocateKvCache(&context, *Stamp(&request), &response);
  }

  // A prompt and `steps` greedy tokens.
  std::vector<int> Generate(int steps) {
    std::vector<int> tokens;
    grpc::ClientContext contexts[2];
    std::unique_ptr<grpc::ClientReaderWriter<v1::StepRequest, v1::StepReply>> streams[2];
    for (int r = 0; r < 2; ++r) streams[r] = stubs_[r]->Execute(&contexts[r]);
    for (int i = 0; i < steps; ++i) {
      v1::StepRequest step;
      step.set_group_epoch(1);
      step.set_step_id(++last_step_);
      if (i == 0) {
        v1::NewSequence* sequence = step.add_new_sequences();
        for (const int token : {5, 17, 42, 9}) sequence->add_token_ids(token);
        sequence->set_num_prompt_tokens(4);
        for (const int block : {1, 2}) sequence->add_block_ids(block);
        v1::StepSampling* sampling = step.add_samplings();
        sampling->set_top_p(1);
        sampling->set_repetition_penalty(1);
        sampling->set_num_logprobs(-1);
        sampling->set_num_prompt_logprobs(-1);
      }
      step.add_sequences()->set_num_tokens(i == 0 ? 4 : 1);
      for (auto& stream : streams) EXPECT_TRUE(stream->Write(step));
      for (int r = 0; r < 2; ++r) {
        v1::StepReply reply;
        EXPECT_TRUE(streams[r]->Read(&reply));
        EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
        EXPECT_EQ(reply.tokens_size(), r == 0 ? 1 : 0);
        if (r == 0 && reply.tokens_size() == 1) tokens.push_back(reply.tokens(0).token_id());
      }
    }
    v1::StepRequest free_slot;
    free_slot.set_group_epoch(1);
    free_slot.set_step_id(++last_step_);
    free_slot.add_freed_slots(0);
    for (auto& stream : streams) {
      v1::StepReply reply;
      EXPECT_TRUE(stream->Write(free_slot) && stream->Read(&reply));
      EXPECT_EQ(reply.error_code(), 0) << reply.error_message();
      stream->WritesDone();
      EXPECT_TRUE(stream->Finish().ok());
    }
    return tokens;
  }

  // Both phases of a sleep, or of a wake-up (level 0).
  void Transit(int sleep_level) {
    v1::PrepareRequest prepare;
    prepare.mutable_transition()->set_sleep_level(sleep_level);
    Stamp(&prepare);
    Both([&](int r) {
      grpc::ClientContext context;
      v1::PrepareResponse response;
      return stubs_[r]->Prepare(&context, prepare, &response);
    });
    v1::CommitRequest commit;
    commit.set_prepare_operation_id(prepare.operation_id());
    Stamp(&commit);
    Both([&](int r) {
      grpc::ClientContext context;
      v1::CommitResponse response;
      return stubs_[r]->Commit(&context, commit, &response);
    });
  }

  // Both ranks get these chunks, whole.
  void Update(const std::string& id, const std::vector<v1::WeightChunk>& chunks, int64_t version) {
    Both([&](int r) {
      v1::BeginWeightUpdateRequest request;
      request.set_update_id(id);
      grpc::ClientContext context;
      v1::BeginWeightUpdateResponse response;
      return stubs_[r]->BeginWeightUpdate(&context, *Stamp(&request), &response);
    });
    Both([&](int r) {
      grpc::ClientContext context;
      v1::WorkerUpdateWeightsResponse response;
      const auto stream = stubs_[r]->UpdateWeights(&context, &response);
      for (size_t i = 0; i < chunks.size(); ++i) {
        v1::WorkerUpdateWeightsRequest request;
        if (i == 0) {
          request.set_group_epoch(1);
          request.set_update_id(id);
        }
        *request.mutable_chunk() = chunks[i];
        stream->Write(request);
      }
      stream->WritesDone();
      return stream->Finish();
    });
    Both([&](int r) {
      v1::FinishWeightUpdateRequest request;
      request.set_update_id(id);
      request.set_weights_version(version);
      grpc::ClientContext context;
      v1::FinishWeightUpdateResponse response;
      const grpc::Status status = stubs_[r]->FinishWeightUpdate(&context, *Stamp(&request), &response);
      EXPECT_EQ(response.weights_version(), version);
      return status;
    });
  }

  void Reload(int64_t version) {
    Both([&](int r) {
      v1::WorkerReloadWeightsRequest request;
      request.set_weights_version(version);
      grpc::ClientContext context;
      v1::WorkerReloadWeightsResponse response;
      const grpc::Status status = stubs_[r]->ReloadWeights(&context, *Stamp(&request), &response);
      EXPECT_EQ(response.checkpoint_fingerprint().size(), 64u);
      return status;
    });
  }

  // Prepared on both ranks, and then given up.
  void Abort(int sleep_level) {
    v1::PrepareRequest prepare;
    prepare.mutable_transition()->set_sleep_level(sleep_level);
    Stamp(&prepare);
    v1::AbortRequest abort;
    abort.set_prepare_operation_id(prepare.operation_id());
    Stamp(&abort);
    Both([&](int r) {
      grpc::ClientContext context;
      v1::PrepareResponse response;
      return stubs_[r]->Prepare(&context, prepare, &response);
    });
    Both([&](int r) {
      grpc::ClientContext context;
      v1::AbortResponse response;
      return stubs_[r]->Abort(&context, abort, &response);
    });
  }

  // That every rank says.
  int64_t Version() {
    int64_t versions[2] = {-1, -1};
    Both([&](int r) {
      v1::WorkerStatusRequest request;
      request.set_group_epoch(1);
      grpc::ClientContext context;
      v1::WorkerStatusResponse response;
      const grpc::Status status = stubs_[r]->GetStatus(&context, request, &response);
      versions[r] = response.weights_version();
      return status;
    });
    EXPECT_EQ(versions[0], versions[1]);
    return versions[0];
  }

  FakeCoordinator coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> stubs_;
  v1::BackupPolicy backup_ = v1::BACKUP_POLICY_UNSPECIFIED;
  int64_t last_step_ = 0;
  std::atomic<uint64_t> last_operation_{0};
};

TEST_P(TwoRanks, SameTokensAfterEitherSleep) {
  Load();
  const std::vector<int> tokens = Generate(12);
  EXPECT_EQ(tokens.size(), 12u);
  for (const int level : {1, 2, 1}) {
    for (const int sleep_level : {level, 0}) Transit(sleep_level);
    EXPECT_EQ(Generate(12), tokens) << "after level " << level;
  }
}

// The model's own tensors, and others: the rows of its embedding in another order.
TEST_P(TwoRanks, NoTransitionBringsOldWeightsBackAfterAnUpdate) {
  backup_ = v1::BACKUP_POLICY_RETAIN;
  Load();
  const std::vector<int> tokens = Generate(12);
  const auto checkpoint = Checkpoint::Open(kModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<v1::WeightChunk> own = ChunksOf(**checkpoint, 1 << 20);
  std::vector<v1::WeightChunk> others = own;
  for (v1::WeightChunk& chunk : others) {
    if (chunk.name() != "model.embed_tokens.weight") continue;
    std::string* data = chunk.mutable_data();
    const auto row = static_cast<std::string::difference_type>(data->size()) / chunk.shape(0);
    std::rotate(data->begin(), data->begin() + row, data->end());
  }
  for (const int level : {1, 0}) Transit(level);  // a backup of the old weights is retained
  Update("first", others, 2);
  const std::vector<int> changed = Generate(12);
  EXPECT_NE(changed, tokens);
  EXPECT_EQ(Version(), 2);
  for (const int level : {1, 0}) Transit(level);
  EXPECT_EQ(Generate(12), changed);
  for (const int level : {1, 2}) {
    Abort(level);
    EXPECT_EQ(Generate(12), changed);
  }
  for (const int level : {2, 0}) Transit(level);
  EXPECT_EQ(Version(), 0) << "no file has them";
  Update("second", own, 3);
  EXPECT_EQ(Generate(12), tokens);
  Update("third", others, 4);
  EXPECT_EQ(Generate(12), changed);
  Reload(5);
  EXPECT_EQ(Generate(12), tokens);
  EXPECT_EQ(Version(), 5);
  for (const int level : {2, 0}) Transit(level);
  EXPECT_EQ(Generate(12), tokens);
  EXPECT_EQ(Version(), 5);
}

TEST_P(TwoRanks, DeathOfARankFailsTheOthersStepSoon) {
  Load();
  processes_[1]->Signal(SIGKILL);
  EXPECT_EQ(processes_[1]->Wait(), 128 + SIGKILL);
  grpc::ClientContext context;
  auto stream = stubs_[0]->Execute(&context);
  v1::StepRequest step;
  step.set_group_epoch(1);
  step.set_step_id(1);
  v1::NewSequence* sequence = step.add_new_sequences();
  sequence->add_token_ids(5);
  sequence->set_num_prompt_tokens(1);
  sequence->add_block_ids(1);
  v1::StepSampling* sampling = step.add_samplings();
  sampling->set_top_p(1);
  sampling->set_repetition_penalty(1);
  sampling->set_num_logprobs(-1);
  sampling->set_num_prompt_logprobs(-1);
  step.add_sequences()->set_num_tokens(1);
  ASSERT_TRUE(stream->Write(step));
  v1::StepReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.error_code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_NE(reply.error_message().find("rank 1"), std::string::npos) << reply.error_message();
}

INSTANTIATE_TEST_SUITE_P(Transports, TwoRanks, testing::Values(Transport::kSharedMemory, Transport::kTcp),
                         [](const testing::TestParamInfo<Transport>& info) {
                           return info.param == Transport::kTcp ? "Tcp" : "SharedMemory";
                         });

}  // namespace
}  // namespace somnus
