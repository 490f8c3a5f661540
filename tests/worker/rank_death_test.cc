// Two worker processes serve a tiny model, with a coordinator that the test plays; a rank is killed.

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "tests/fakes/unique_name.h"
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

  // Sends the same call to both ranks at once.
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

  FakeCoordinator coordinator_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<v1::WorkerService::Stub>> stubs_;
  std::atomic<uint64_t> last_operation_{0};
};

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
