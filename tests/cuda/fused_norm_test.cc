// Models over ranks add up and normalize in one kernel where messages are small: the same bits as by two
// kernels.
#include <gtest/gtest.h>

#include <atomic>

#include "tests/cuda/gpu_ranks.h"
#include "tests/runner/mini_engine.h"

namespace somnus::cuda_test {
namespace {

// Peers that count fused calls, or refuse to fuse.
class CountingPeers : public PeerCollectives {
 public:
  CountingPeers(std::unique_ptr<PeerCollectives> peers, bool fuses, std::atomic<int>* fused)
      : peers_(std::move(peers)), fuses_(fuses), fused_(fused) {}
  PeerHandle handle() const override { return peers_->handle(); }
  absl::Status Connect(absl::Span<const PeerHandle> handles) override { return peers_->Connect(handles); }
  absl::Status WriteProbe() override { return peers_->WriteProbe(); }
  absl::Status CheckProbe() override { return peers_->CheckProbe(); }
  PeerLink link() const override { return peers_->link(); }
  void SetGroupLink(PeerLink link) override { peers_->SetGroupLink(link); }
  void Disconnect() override { peers_->Disconnect(); }
  void AllReduceSum(void* data, int64_t count, DataType type) override {
    peers_->AllReduceSum(data, count, type);
  }
  void AllGather(const void* in, int64_t bytes, void* out) override { peers_->AllGather(in, bytes, out); }
  bool AllReduceAddRmsNorm(const TensorView& residual, const TensorView& delta, const float* weight,
                           double eps, const TensorView& out) override {
    if (!fuses_ || !peers_->AllReduceAddRmsNorm(residual, delta, weight, eps, out)) return false;
    ++*fused_;
    return true;
  }
  void Stop() override { peers_->Stop(); }
  absl::Status status() const override { return peers_->status(); }

 private:
  const std::unique_ptr<PeerCollectives> peers_;
  const bool fuses_;
  std::atomic<int>* const fused_;
};

MakeRankDevice Ranks(bool fuses, std::atomic<int>* fused) {
  return [=](int rank) -> absl::StatusOr<RankDevice> {
    ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
    made.join = [=](const std::string& group, int rank, int world_size, Device* device) {
      GroupOptions options{.group_name = group, .rank = rank, .world_size = world_size};
      const MakePeers make =
          [=](const PeerOptions& peers) -> absl::StatusOr<std::unique_ptr<PeerCollectives>> {
        ASSIGN_OR_RETURN(auto real, SOMNUS_CUDA_NAMESPACE::MakePeerCollectives(
                                        SOMNUS_CUDA_NAMESPACE::AsCuda(*device), peers));
        return std::make_unique<CountingPeers>(std::move(real), fuses, fused);
      };
      return JoinDeviceGroup(options, device, make, absl::UnavailableError("the ranks share a GPU"));
    };
    return made;
  };
}

// A model's tokens and log-probabilities, to the last bit; `fused`: how often two ops were fused.
std::string Say(const std::string& model, DataType dtype, bool fuses, int* fused) {
  ModelRunnerOptions options;
  options.dtype = dtype;
  options.max_num_seqs = 2;
  options.max_num_batched_tokens = 16;
  options.max_model_len = 64;
  std::atomic<int> count{0};
  std::string said;
  {
    const auto group = RankGroup::Load("tests/data/tiny/" + model, 2, options, 16, Ranks(fuses, &count));
    EXPECT_TRUE(group.ok()) << group.status();
    if (!group.ok()) return "";
    std::vector<MiniRequest> requests(2);
    requests[0].prompt = {3, 17, 5, 40, 21};
    requests[1].prompt = {9};
    for (MiniRequest& request : requests) {
      request.max_tokens = 3;
      request.sampling.set_num_logprobs(3);
    }
    const auto results = RunAll(**group, requests, MiniOptions{.max_step_tokens = 16, .num_blocks = 16});
    EXPECT_TRUE(results.ok()) << results.status();
    if (!results.ok()) return "";
    for (const MiniResult& result : *results) {
      EXPECT_EQ(result.logprobs.size(), 3u);
      for (const v1::StepLogprobs& logprobs : result.logprobs) said += logprobs.SerializeAsString();
    }
  }
  *fused = count;
  return said;
}

TEST(FusedNorm, SameBits) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  const std::pair<const char*, DataType> cases[] = {
      {"llama-uneven", DataType::kF32}, {"qwen2", DataType::kBF16}, {"qwen3", DataType::kBF16}};
  for (const auto& [model, dtype] : cases) {
    int fused = 0, unfused = 0;
    const std::string expected = Say(model, dtype, false, &unfused);
    EXPECT_EQ(Say(model, dtype, true, &fused), expected) << model;
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(unfused, 0);
    EXPECT_GT(fused, 0) << model;
  }
}

// LayerNorm is not RMSNorm.
TEST(FusedNorm, NotForOpt) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  int fused = 0;
  EXPECT_FALSE(Say("opt", DataType::kBF16, true, &fused).empty());
  EXPECT_EQ(fused, 0);
}

}  // namespace
}  // namespace somnus::cuda_test
