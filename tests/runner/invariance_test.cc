// Batch invariance through the whole runner, bitwise: a request's results do not depend on chunking, on the
// other requests of the batch, on the places of blocks, on threads, nor on whether the prefix was already in
// the cache.
#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "checkpoint/storage_type.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/kernel_test_util.h"
#include "tests/runner/quantized_gguf.h"
#include "tests/runner/same_bits.h"

namespace somnus {
namespace {

constexpr int32_t kBlocks = 256;

std::vector<MiniRequest> MakeRequests(const ModelConfig& config) {
  std::mt19937 random(7);
  std::vector<MiniRequest> requests;
  for (int32_t length : {1, 5, 16, 33, 70, 129}) {
    MiniRequest request;
    for (int32_t i = 0; i < length; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % config.vocab_size));
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
  // A folder of tests/data, or empty: a file of random weights.
  std::string model = {};
  DataType dtype = DataType::kBF16;
  int world_size = 1;
  std::optional<DataType> cache = {};
  // The model's weights have this type, and are computed as stored.
  std::optional<StorageType> quantized = {};
  CpuIsa isa = CpuIsa::kBest;
  std::optional<DataType> quantize = {};  // at load
  // Ranks of the file's model cut rows within blocks, so that these matrices are expanded.
  bool cuts_blocks = false;
  // The types in which each rank's matrices are computed; empty: not checked.
  std::vector<std::string> types = {};
};

// The file's model is such that every rank has whole blocks of each row: of a K type 256 of a head's columns
// and of the MLP's. Each is written once in this process.
std::string WriteModel(const Setup& setup) {
  const StorageType type = setup.quantized.value_or(StorageType::kQ5_1);
  QuantizedGguf model = {.layers = type, .embedding = type};
  if (setup.cuts_blocks) {
    model.hidden = model.intermediate = 256;
  } else if (BlockSizeOf(type).elements == 256) {
    model.hidden = 256;
    model.head_dim = 256;
    model.intermediate = 256 * setup.world_size;
  } else {
    model.intermediate = 384;
  }
  static auto& paths = *new std::map<QuantizedGguf, std::string>;
  std::string& path = paths[model];
  if (path.empty()) path = WriteQuantizedGguf(model);
  return path;
}

// The names of "Q4_1 63.3 MiB, Q8_0 28.7 MiB".
std::vector<std::string> TypesIn(const std::string& text) {
  std::vector<std::string> names;
  for (const absl::string_view entry : absl::StrSplit(text, ", "))
    names.emplace_back(entry.substr(0, entry.find(' ')));
  return names;
}

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
    if (path_.empty())
      path_ = GetParam().model.empty() ? WriteModel(GetParam()) : "tests/data/" + GetParam().model;
    auto group =
        RankGroup::Load(path_, GetParam().world_size, options, kBlocks, CpuRanks(threads, GetParam().isa));
    EXPECT_TRUE(group.ok()) << group.status();
    if (!group.ok()) return nullptr;
    for (int rank = 0; rank < GetParam().world_size && !GetParam().types.empty(); ++rank) {
      EXPECT_THAT(TypesIn((*group)->runner(rank).weight_types()),
                  testing::UnorderedElementsAreArray(GetParam().types))
          << "rank " << rank;
    }
    return *std::move(group);
  }

  struct Cut {
    const char* name;
    MiniOptions options;
    RankGroup* group;
  };
  // The logits of each request alone, in a single piece, and of all together in each of the cuts.
  static void ExpectSameBits(RankGroup& group, const std::vector<MiniRequest>& requests,
                             const std::vector<Cut>& cuts) {
    std::vector<MiniResult> alone;
    for (const MiniRequest& request : requests) {
      const auto result = RunAll(group, {request}, MiniOptions());
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ((*result)[0].prompt_logprobs.size(), request.prompt.size() - 1);
      alone.push_back((*result)[0]);
    }
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

 private:
  std::string path_;
};

// Shuffled blocks, and few requests at a time.
MiniOptions Shuffled() {
  MiniOptions options{.chunk = 23, .block_seed = 99, .max_running = 3, .max_step_tokens = 37};
  return options;
}

TEST_P(InvarianceTest, SameBitsHoweverTheWorkIsCut) {
  std::unique_ptr<RankGroup> group = Load(1), two_threads = Load(2);
  ASSERT_TRUE(group && two_threads);
  std::vector<Cut> cuts;
  for (int32_t chunk : {1, 16, 64, 1 << 20}) {
    cuts.push_back({"chunks", MiniOptions{.chunk = chunk}, group.get()});
  }
  cuts.push_back({"shuffled blocks, few at a time", Shuffled(), group.get()});
  MiniOptions stale{.stale_steps = true};
  cuts.push_back({"stale steps", stale, group.get()});
  cuts.push_back({"two threads", Shuffled(), two_threads.get()});
  ExpectSameBits(*group, MakeRequests(group->config()), cuts);
}

// The message that the coordinator sends for a prefix-cache hit: the first blocks belong to an earlier
// sequence.
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
  const std::vector<int32_t> prompt = MakeRequests(group->config())[4].prompt;  // 70 tokens, 5 blocks
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

INSTANTIATE_TEST_SUITE_P(
    Models, InvarianceTest,
    testing::Values(Setup{"tiny/llama-uneven", DataType::kF32, 1},
                    Setup{"tiny/llama-uneven", DataType::kBF16, 1}, Setup{"tiny/qwen3", DataType::kBF16, 2},
                    Setup{"tiny/opt", DataType::kBF16, 1}, Setup{"tiny/llama-rope3", DataType::kBF16, 3},
                    Setup{"tiny/llama-uneven", DataType::kBF16, 1, DataType::kF8E4M3},
                    Setup{"tiny/qwen3", DataType::kF32, 2, DataType::kF8E4M3},
                    Setup{"tiny/llama-uneven", DataType::kBF16, 1, DataType::kI8},
                    Setup{"tiny/qwen3", DataType::kF32, 2, DataType::kI8},
                    Setup{"tiny/llama-uneven", DataType::kF32, 4, DataType::kI8},
                    Setup{"variants/qwen3-moe", DataType::kBF16, 2},
                    Setup{"variants/glm4-moe", DataType::kF32, 3},
                    Setup{"variants/gpt-oss", DataType::kBF16, 2},
                    Setup{"variants/deepseek-v3", DataType::kBF16, 3},
                    Setup{.model = "variants/mixtral", .quantize = DataType::kQ8_0},
                    Setup{"", DataType::kF32, 4, {}, StorageType::kQ5_0},
                    // Two of three ranks have 80 of 256 columns, the last rank has 96.
                    Setup{.world_size = 3, .quantized = StorageType::kQ8_0, .cuts_blocks = true},
                    Setup{.world_size = 2,
                          .quantized = StorageType::kQ6_K,
                          .cuts_blocks = true,
                          .types = {"Q6_K", "bfloat16"}}));

// Every type of weights that a CPU computes as stored, and the types that the flags make of a checkpoint, on
// one to four ranks. A load quantizes the layers alone: the embedding stays in bfloat16.
std::vector<Setup> EachType(const std::vector<int>& world_sizes) {
  std::vector<Setup> setups;
  for (const int ranks : world_sizes) {
    for (const StorageTypeInfo& info : kStorageTypeInfos) {
      if (info.block.elements == 1 || info.ggml_type == kNoGgmlType) continue;
      setups.push_back({.world_size = ranks, .quantized = info.type, .types = {info.name}});
    }
    for (const auto& [type, name] :
         {std::pair{DataType::kQ8_0, "Q8_0"}, {DataType::kQ4_1, "Q4_1"}, {DataType::kF8E4M3, "fp8_e4m3"}})
      setups.push_back({.world_size = ranks, .quantize = type, .types = {name, "bfloat16"}});
    for (const auto& [type, name] :
         {std::pair{DataType::kF32, "float32"}, {DataType::kBF16, "bfloat16"}, {DataType::kF16, "float16"}})
      setups.push_back({.dtype = type, .world_size = ranks, .types = {name}});
    // Fp8 as stored, with a scale for each tensor, and for each block of 32 x 32: no GGUF file has it. Of the
    // goldens' 96 rows in the MLP two or four ranks have no whole blocks, and compute the cut matrices in
    // bfloat16, as the embedding. On four ranks two ranks, which have no head either, would have no fp8 at
    // all.
    for (const char* model : {"packed/fp8", "packed/fp8-blocks"}) {
      if (ranks == 4 && std::string(model) == "packed/fp8-blocks") continue;
      setups.push_back({.model = model,
                        .world_size = ranks,
                        .quantized = StorageType::kF8E4M3,
                        .types = {"fp8_e4m3", "bfloat16"}});
    }
  }
  return setups;
}

std::string TypeOnRanks(const testing::TestParamInfo<Setup>& info) {
  const Setup& setup = info.param;
  const std::string from = setup.model == "packed/fp8-blocks" ? "_of_blocks" : "";
  return absl::StrCat(setup.types[0], from, setup.quantize ? "_at_load" : "", "_", setup.world_size,
                      "_ranks");
}

INSTANTIATE_TEST_SUITE_P(Types, InvarianceTest, testing::ValuesIn(EachType({1, 2, 3, 4})), TypeOnRanks);

// The same on every instruction set that this CPU has.
std::vector<Setup> OnEachIsa() {
  std::vector<Setup> setups;
  for (const CpuIsa isa : kernel_test::AvailableIsas()) {
    setups.push_back({"tiny/llama-uneven", DataType::kBF16, 1, {}, {}, isa});
    setups.push_back({"tiny/llama-uneven", DataType::kBF16, 1, DataType::kI8, {}, isa});
    setups.push_back({"", DataType::kBF16, 2, {}, StorageType::kQ8_0, isa});
    setups.push_back({"tiny/qwen3", DataType::kBF16, 2, {}, {}, isa, DataType::kF8E4M3});
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

// Every type on every instruction set, in a case that is short enough for the whole product.
class TypeOnIsaTest : public InvarianceTest {};

TEST_P(TypeOnIsaTest, SameBitsAloneAndTogether) {
  std::unique_ptr<RankGroup> group = Load(1), two_threads = Load(2);
  ASSERT_TRUE(group && two_threads);
  std::vector<MiniRequest> requests = MakeRequests(group->config());
  // Prompts of 5, 33 and 70 tokens: each alone has few rows for some sets, and all at once have so many rows
  // that every set expands the weights (kernels/cpu/tile_sizes.h).
  requests = {requests[1], requests[3], requests[4]};
  for (MiniRequest& request : requests) request.max_tokens = 3;
  ExpectSameBits(*group, requests,
                 {{"whole", MiniOptions(), group.get()}, {"two threads", Shuffled(), two_threads.get()}});
}

std::vector<Setup> EachTypeOnEachIsa() {
  std::vector<Setup> setups;
  for (const CpuIsa isa : kernel_test::AvailableIsas()) {
    for (Setup setup : EachType({1, 2, 4})) {
      setup.isa = isa;
      setups.push_back(setup);
    }
  }
  return setups;
}

INSTANTIATE_TEST_SUITE_P(Isas, TypeOnIsaTest, testing::ValuesIn(EachTypeOnEachIsa()),
                         [](const testing::TestParamInfo<Setup>& info) {
                           return absl::StrCat(CpuIsaName(info.param.isa), "_", TypeOnRanks(info));
                         });

}  // namespace
}  // namespace somnus
