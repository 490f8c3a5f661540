// --batch-invariant through the whole runner on a GPU, bitwise: a request's tokens and log-probabilities do
// not depend on the rest of the batch, on chunks, on graphs, on the places of blocks, nor on whether a
// token's keys and values were made by a decode or, after a preemption, by a prefill.

#include <random>
#include <string>

#include "tests/cuda/gpu_ranks.h"
#include "tests/runner/same_bits.h"

namespace somnus::cuda_test {
namespace {

struct Setup {
  const char* model;
  DataType dtype;
  int world_size;
  std::optional<DataType> cache = {};
};

class BatchInvarianceTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice()); }

  static std::unique_ptr<RankGroup> Load(bool eager = false) {
    ModelRunnerOptions options;
    options.dtype = GetParam().dtype;
    options.kv_cache_dtype = GetParam().cache;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 96;
    options.max_model_len = 128;
    options.enforce_eager = eager;
    const MakeRankDevice make = [](int rank) -> absl::StatusOr<RankDevice> {
      ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
      made.device->SetBatchInvariant(true);
      return made;
    };
    auto group = RankGroup::Load(std::string("tests/data/") + GetParam().model, GetParam().world_size,
                                 options, 64, make);
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *std::move(group) : nullptr;
  }
};

std::vector<MiniRequest> Requests(int32_t vocab_size) {
  std::mt19937 random(7);
  std::vector<MiniRequest> requests;
  for (const int32_t length : {1, 19, 40}) {
    MiniRequest request;
    for (int32_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % vocab_size));
    request.max_tokens = 3;
    request.sampling.set_num_logprobs(5);
    request.sampling.set_num_prompt_logprobs(2);
    if (length % 2 == 0) {
      request.sampling.set_temperature(0.8f);
      request.seed = length;
    }
    requests.push_back(request);
  }
  return requests;
}

MiniOptions Cut(int32_t chunk, uint64_t block_seed = 0) {
  MiniOptions options{.chunk = chunk, .block_seed = block_seed, .max_step_tokens = 96, .num_blocks = 64};
  return options;
}

MiniResult RunOne(RankGroup& group, const MiniRequest& request, const MiniOptions& options) {
  const auto result = RunAll(group, {request}, options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? (*result)[0] : MiniResult();
}

TEST_P(BatchInvarianceTest, SameBitsHoweverTheWorkIsCut) {
  const std::unique_ptr<RankGroup> group = Load(), eager = Load(/*eager=*/true);
  ASSERT_TRUE(group && eager);
  const std::vector<MiniRequest> requests = Requests(group->config().vocab_size);
  std::vector<MiniResult> alone;
  for (const MiniRequest& request : requests) alone.push_back(RunOne(*group, request, Cut(96)));
  for (const auto& [ranks, options] :
       {std::pair{group.get(), Cut(96)}, {group.get(), Cut(23, 99)}, {eager.get(), Cut(16)}}) {
    const auto together = RunAll(*ranks, requests, options);
    ASSERT_TRUE(together.ok()) << together.status();
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "chunk " << options.chunk << ", request " << i);
      ExpectSame((*together)[i], alone[i]);
    }
  }
}

// After a preemption the tokens that decodes made come back as the end of a prompt.
TEST_P(BatchInvarianceTest, SameBitsWhenDecodedTokensArePrefilled) {
  const std::unique_ptr<RankGroup> group = Load();
  ASSERT_TRUE(group);
  MiniRequest request = Requests(group->config().vocab_size)[1];
  request.max_tokens = 8;
  const MiniResult whole = RunOne(*group, request, Cut(96));
  ASSERT_EQ(whole.tokens.size(), 8u);
  MiniRequest rest = request;
  rest.prompt.insert(rest.prompt.end(), whole.tokens.begin(), whole.tokens.begin() + 5);
  rest.max_tokens = 3;
  const MiniResult after = RunOne(*group, rest, Cut(96));
  EXPECT_EQ(after.tokens, std::vector<int32_t>(whole.tokens.begin() + 5, whole.tokens.end()));
  ExpectSameLogprobs(after.logprobs, {whole.logprobs.begin() + 5, whole.logprobs.end()});
}

std::string SetupName(const testing::TestParamInfo<Setup>& info) {
  std::string name = std::string(info.param.model) + "_" + std::to_string(SizeOf(info.param.dtype)) +
                     "_bytes_" + std::to_string(info.param.world_size) +
                     (!info.param.cache                    ? ""
                      : *info.param.cache == DataType::kI8 ? "_i8"
                                                           : "_f8");
  for (char& c : name) c = c == '-' || c == '/' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, BatchInvarianceTest,
                         testing::Values(Setup{"tiny/llama-uneven", DataType::kBF16, 1},
                                         Setup{"tiny/llama-uneven", DataType::kF32, 1},
                                         Setup{"tiny/qwen3", DataType::kBF16, 2},
                                         Setup{"tiny/opt", DataType::kF16, 1, DataType::kF8E4M3},
                                         Setup{"tiny/qwen3", DataType::kBF16, 2, DataType::kI8},
                                         Setup{"variants/gpt-oss", DataType::kBF16, 1}),
                         SetupName);

}  // namespace
}  // namespace somnus::cuda_test
