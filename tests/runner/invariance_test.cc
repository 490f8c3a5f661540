// Batch invariance through the whole runner, bitwise: a request's results do not depend on chunking, on the
// other requests of the batch, on where its blocks are, on threads, nor on whether its prefix was already in
// the cache.
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

constexpr int32_t kVocab = 512;
constexpr int32_t kBlocks = 256;

std::vector<MiniRequest> MakeRequests() {
  std::mt19937 random(7);
  std::vector<MiniRequest> requests;
  for (int32_t length : {1, 5, 16, 33, 70, 129}) {
    MiniRequest request;
    for (int32_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<int32_t>(random() % kVocab));
    request.max_tokens = 12;
    request.sampling.set_num_logprobs(5);
    request.sampling.set_num_prompt_logprobs(3);
    if (length % 2 == 0) {  // some sample, with every parameter that depends on history
      request.sampling.set_temperature(0.8f);
      request.sampling.set_top_p(0.9f);
      request.sampling.set_top_k(50);
      request.seed = length;
      request.sampling.set_repetition_penalty(1.1f);
      request.sampling.set_presence_penalty(0.3f);
    }
    requests.push_back(request);
  }
  return requests;
}

struct Setup {
  const char* model;
  DataType dtype;
  int world_size;
  std::optional<DataType> cache = {};
  // The model is one of random weights of this type, computed as stored.
  std::optional<StorageType> quantized = {};
  CpuIsa isa = CpuIsa::kBest;
  std::optional<DataType> quantize = {};  // at load
};

class InvarianceTest : public testing::TestWithParam<Setup> {
 protected:
  std::unique_ptr<RankGroup> Load(int threads) {
    ModelRunnerOptions options;
    options.dtype = GetParam().dtype;
    options.kv_cache_dtype = GetParam().cache;
    options.dequantize = !GetParam().quantized;
    options.quantize = GetParam().quantize;
    options.max_num_seqs = 8;
    options.max_num_batched_tokens = 512;
    options.max_model_len = 256;
    const std::string path =
        GetParam().quantized
            ? WriteQuantizedGguf({.layers = *GetParam().quantized, .hidden = 256, .intermediate = 256})
            : std::string("tests/data/tiny/") + GetParam().model;
    auto group =
        RankGroup::Load(path, GetParam().world_size, options, kBlocks, CpuRanks(threads, GetParam().isa));
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *std::move(group) : nullptr;
  }
};

TEST_P(InvarianceTest, SameBitsHoweverTheWorkIsCut) {
  const std::vector<MiniRequest> requests = MakeRequests();
  std::unique_ptr<RankGroup> group = Load(1), two_threads = Load(2);
  ASSERT_TRUE(group && two_threads);
  std::vector<MiniResult> alone;
  for (const MiniRequest& request : requests) {
    const auto result = RunAll(*group, {request}, MiniOptions());
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_EQ((*result)[0].prompt_logprobs.size(), request.prompt.size() - 1);
    alone.push_back((*result)[0]);
  }
  struct Cut {
    const char* name;
    MiniOptions options;
    RankGroup* group;
  };
  std::vector<Cut> cuts;
  for (int32_t chunk : {1, 16, 64, 1 << 20}) {
    MiniOptions options;
    options.chunk = chunk;
    cuts.push_back({"chunks", options, group.get()});
  }
  MiniOptions shuffled;
  shuffled.block_seed = 99;
  shuffled.chunk = 23;
  shuffled.max_running = 3;
  shuffled.max_step_tokens = 37;
  cuts.push_back({"shuffled blocks, few at a time", shuffled, group.get()});
  MiniOptions stale;
  stale.stale_steps = true;
  cuts.push_back({"stale steps", stale, group.get()});
  cuts.push_back({"two threads", shuffled, two_threads.get()});
  for (const Cut& cut : cuts) {
    SCOPED_TRACE(testing::Message() << cut.name << ", chunk " << cut.options.chunk);
    const auto together = RunAll(*cut.group, requests, cut.options);
    ASSERT_TRUE(together.ok()) << together.status();
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i);
      ExpectSame((*together)[i], alone[i]);
    }
  }
}

// The message that the coordinator sends for a prefix-cache hit: the first blocks are another sequence's.
v1::StepRequest Prompt(int32_t slot, const std::vector<int32_t>& prompt, int32_t computed,
                       const std::vector<int32_t>& blocks) {
  v1::StepRequest request;
  v1::NewSequence* fresh = request.add_new_sequences();
  fresh->set_slot(slot);
  fresh->mutable_token_ids()->Add(prompt.begin(), prompt.end());
  fresh->set_num_prompt_tokens(static_cast<int32_t>(prompt.size()));
  fresh->set_num_computed_tokens(computed);
  fresh->mutable_block_ids()->Add(blocks.begin(), blocks.end());
  *request.add_samplings() = GreedySampling();
  request.mutable_samplings(0)->set_num_logprobs(20);
  request.add_sequences()->set_slot(slot);
  request.mutable_sequences(0)->set_num_tokens(static_cast<int32_t>(prompt.size()) - computed);
  return request;
}

TEST_P(InvarianceTest, SameBitsAfterAPrefixHitAndABlockCopy) {
  std::unique_ptr<RankGroup> group = Load(1);
  ASSERT_TRUE(group);
  const std::vector<int32_t> prompt = MakeRequests()[4].prompt;  // 70 tokens, 5 blocks
  const auto whole = group->Execute(Prompt(0, prompt, 0, {11, 7, 9, 30, 2}));
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto hit = group->Execute(Prompt(1, prompt, 64, {11, 7, 9, 30, 3}));
  ASSERT_TRUE(hit.ok()) << hit.status();
  v1::StepRequest copied = Prompt(2, prompt, 48, {21, 22, 23, 31, 33});
  // A chain and a swap through a third block: order matters.
  for (const auto& [src, dst] : {std::pair{11, 23}, {23, 21}, {7, 22}, {9, 23}}) {
    v1::BlockCopy* copy = copied.add_copies();
    copy->set_src(src);
    copy->set_dst(dst);
  }
  const auto after_copy = group->Execute(copied);
  ASSERT_TRUE(after_copy.ok()) << after_copy.status();
  for (const v1::StepReply* reply : {&*hit, &*after_copy}) {
    ASSERT_EQ(reply->tokens_size(), 1);
    EXPECT_EQ(reply->tokens(0).token_id(), whole->tokens(0).token_id());
    ExpectSameLogprobs({reply->tokens(0).logprobs()}, {whole->tokens(0).logprobs()});
  }
}

INSTANTIATE_TEST_SUITE_P(Models, InvarianceTest,
                         testing::Values(Setup{"llama-uneven", DataType::kF32, 1},
                                         Setup{"llama-uneven", DataType::kBF16, 1},
                                         Setup{"qwen3", DataType::kBF16, 2}, Setup{"opt", DataType::kBF16, 1},
                                         Setup{"llama-rope3", DataType::kBF16, 3},
                                         Setup{"llama-uneven", DataType::kBF16, 1, DataType::kF8E4M3},
                                         Setup{"qwen3", DataType::kF32, 2, DataType::kF8E4M3},
                                         Setup{"llama-uneven", DataType::kBF16, 1, DataType::kI8},
                                         Setup{"qwen3", DataType::kF32, 2, DataType::kI8},
                                         Setup{"llama-uneven", DataType::kF32, 4, DataType::kI8},
                                         Setup{"", DataType::kBF16, 1, {}, StorageType::kQ4_1},
                                         Setup{"", DataType::kBF16, 2, {}, StorageType::kQ4_0},
                                         Setup{"", DataType::kBF16, 3, {}, StorageType::kQ8_0},
                                         Setup{"", DataType::kF32, 4, {}, StorageType::kQ5_0},
                                         Setup{"", DataType::kBF16, 1, {}, StorageType::kQ4_K},
                                         Setup{"", DataType::kBF16, 2, {}, StorageType::kQ6_K}));

// The same on every instruction set that this CPU has.
std::vector<Setup> OnEachIsa() {
  std::vector<Setup> setups;
  for (const CpuIsa isa : kCpuIsas) {
    if (!Device::CreateCpu({.num_threads = 1, .isa = isa}).ok()) continue;
    setups.push_back({"llama-uneven", DataType::kBF16, 1, {}, {}, isa});
    setups.push_back({"llama-uneven", DataType::kBF16, 1, DataType::kI8, {}, isa});
    setups.push_back({"", DataType::kBF16, 2, {}, StorageType::kQ8_0, isa});
    setups.push_back({"qwen3", DataType::kBF16, 2, {}, {}, isa, DataType::kF8E4M3});
  }
  return setups;
}

INSTANTIATE_TEST_SUITE_P(Isas, InvarianceTest, testing::ValuesIn(OnEachIsa()),
                         [](const testing::TestParamInfo<Setup>& info) {
                           return std::string(CpuIsaName(info.param.isa)) +
                                  (info.param.quantized.has_value() ? "_quantized" : "") +
                                  (info.param.quantize.has_value() ? "_fp8" : "") +
                                  (info.param.cache.has_value() ? "_int8_cache" : "");
                         });

}  // namespace
}  // namespace somnus
