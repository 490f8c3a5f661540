// Architectures that the product does not have, each added like any other: by a record and a registration.
#include "checkpoint/family.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_keys.h"
#include "tests/checkpoint/writers.h"
#include "tests/model/golden.h"
#include "tests/runner/mini_engine.h"

namespace somnus {
namespace {

using nlohmann::json;

// A Llama whose keys and tensors have unusual names.
absl::Status ReadRenamed(JsonFields* fields, ModelConfig* config) {
  config->vocab_size = fields->Size("words");
  config->hidden_size = config->embedding_dim = fields->Size("width");
  config->intermediate_size = fields->Size("mlp_width");
  config->num_layers = fields->Size("depth");
  config->num_heads = fields->Size("heads");
  config->num_kv_heads = fields->Size("kv_heads");
  config->head_dim = config->hidden_size / config->num_heads;
  config->max_position_embeddings = fields->Size("positions");
  config->norm_eps = fields->Double("eps", 1e-5);
  return fields->status();
}

constexpr TensorSpec kRenamedTensors[] = {
    {.role = TensorRole::kEmbedding,
     .name = "words",
     .gguf = "token_embd",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding},
    {.role = TensorRole::kFinalNorm, .name = "tower.top", .gguf = "output_norm"},
    {.role = TensorRole::kHead,
     .name = "reader",
     .gguf = "output",
     .rows = Dim::kVocab,
     .cols = Dim::kEmbedding,
     .present = HasOwnHead},
};

constexpr TensorSpec kRenamedLayerTensors[] = {
    {.role = TensorRole::kAttentionNorm, .name = "norm1", .gguf = "attn_norm"},
    {.role = TensorRole::kQuery, .name = "q", .gguf = "attn_q", .rows = Dim::kQueries, .cols = Dim::kHidden},
    {.role = TensorRole::kKey, .name = "k", .gguf = "attn_k", .rows = Dim::kKeysValues, .cols = Dim::kHidden},
    {.role = TensorRole::kValue,
     .name = "v",
     .gguf = "attn_v",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden},
    {.role = TensorRole::kAttentionOut,
     .name = "o",
     .gguf = "attn_output",
     .rows = Dim::kHidden,
     .cols = Dim::kQueries},
    {.role = TensorRole::kMlpNorm, .name = "norm2", .gguf = "ffn_norm"},
    {.role = TensorRole::kGate,
     .name = "gate",
     .gguf = "ffn_gate",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden},
    {.role = TensorRole::kUp,
     .name = "up",
     .gguf = "ffn_up",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden},
    {.role = TensorRole::kDown,
     .name = "down",
     .gguf = "ffn_down",
     .rows = Dim::kHidden,
     .cols = Dim::kIntermediate},
};

constexpr Family kRenamed = {
    .model_type = "renamed",
    .class_name = "Renamed",
    .gguf_architecture = "renamed",
    .read_config = ReadRenamed,
    .layer_prefix = "tower.",
    .tensors = kRenamedTensors,
    .layer_tensors = kRenamedLayerTensors,
};
const FamilyRegistration kRenamedRegistration(&kRenamed);

// A combination that no known family has: LayerNorm, norms of q and k, rotary and learned positions, a plain
// MLP with biases, and further biases.
absl::Status ReadMixed(JsonFields* fields, ModelConfig* config) {
  RETURN_IF_ERROR(ReadRenamed(fields, config));
  config->attention_qkv_bias = config->attention_out_bias = config->mlp_bias = true;
  config->tie_word_embeddings = true;
  ReadActivation(fields, "activation", "gelu", config);
  return fields->status();
}

constexpr TensorSpec kMixedTensors[] = {
    {.role = TensorRole::kEmbedding, .name = "words", .rows = Dim::kVocab, .cols = Dim::kEmbedding},
    {.role = TensorRole::kPositions, .name = "places", .rows = Dim::kPositions, .cols = Dim::kHidden},
    {.role = TensorRole::kFinalNorm, .name = "top", .bias = Always},
};

constexpr TensorSpec kMixedLayerTensors[] = {
    {.role = TensorRole::kAttentionNorm, .name = "norm1", .bias = Always},
    {.role = TensorRole::kQuery,
     .name = "q",
     .rows = Dim::kQueries,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kKey,
     .name = "k",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kValue,
     .name = "v",
     .rows = Dim::kKeysValues,
     .cols = Dim::kHidden,
     .bias = HasQkvBias},
    {.role = TensorRole::kQueryNorm, .name = "q_norm", .rows = Dim::kHeadDim},
    {.role = TensorRole::kKeyNorm, .name = "k_norm", .rows = Dim::kHeadDim},
    {.role = TensorRole::kAttentionOut,
     .name = "o",
     .rows = Dim::kHidden,
     .cols = Dim::kQueries,
     .bias = HasOutBias},
    {.role = TensorRole::kMlpNorm, .name = "norm2", .bias = Always},
    {.role = TensorRole::kUp,
     .name = "up",
     .rows = Dim::kIntermediate,
     .cols = Dim::kHidden,
     .bias = HasMlpBias},
    {.role = TensorRole::kDown,
     .name = "down",
     .rows = Dim::kHidden,
     .cols = Dim::kIntermediate,
     .bias = HasMlpBias},
};

constexpr Family kMixed = {
    .model_type = "mixed",
    .class_name = "Mixed",
    .read_config = ReadMixed,
    .norm = NormKind::kLayerNorm,
    .gated_mlp = false,
    .qk_norm = true,
    .learned_positions = true,
    .position_offset = 3,
    .layer_prefix = "tower.",
    .tensors = kMixedTensors,
    .layer_tensors = kMixedLayerTensors,
};
const FamilyRegistration kMixedRegistration(&kMixed);

json RenamedConfig(const char* class_name) {
  return {{"architectures", {class_name}},
          {"words", 512},
          {"width", 72},
          {"mlp_width", 136},
          {"depth", 2},
          {"heads", 9},
          {"kv_heads", 3},
          {"positions", 512}};
}

const Family& Llama() {
  return *FindFamily([](const Family& f) { return std::strcmp(f.model_type, "llama") == 0; });
}

// tests/data/tiny/llama-uneven under the other names.
std::string RenamedLlama() {
  const std::string from = "tests/data/tiny/llama-uneven/", to = MakeTempDir() + "/";
  const std::string file = ReadFile(from + "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  json header = json::parse(file.substr(8, header_bytes));
  const auto rename = [&](TensorRole role, int32_t layer) {
    const std::string old_name = TensorName(Llama(), role, layer) + ".weight";
    header[TensorName(kRenamed, role, layer) + ".weight"] = header.at(old_name);
    header.erase(old_name);
  };
  for (const TensorSpec& spec : kRenamedTensors) rename(spec.role, 0);
  for (const TensorSpec& spec : kRenamedLayerTensors) {
    for (int32_t layer = 0; layer < 2; ++layer) rename(spec.role, layer);
  }
  WriteFile(to + "model.safetensors", SafetensorsFile(header.dump(), file.substr(8 + header_bytes)));
  WriteFile(to + "config.json", RenamedConfig("RenamedForCausalLM").dump());
  WriteFile(to + "expected.json", ReadFile(from + "expected.json"));
  return to;
}

TEST(Family, ARecordOfOtherNamesComputesTheSameModel) {
  const std::string folder = RenamedLlama();
  for (const int world_size : {1, 2, 3}) {
    const auto original = RunGolden("tests/data/tiny/llama-uneven", world_size, DataType::kF32);
    const auto renamed = RunGolden(folder, world_size, DataType::kF32);
    ASSERT_TRUE(original.ok() && renamed.ok()) << original.status() << renamed.status();
    EXPECT_EQ(renamed->mismatch, "");
    EXPECT_LT(renamed->worst, 2e-4);
    EXPECT_EQ(renamed->worst, original->worst);
  }
}

TEST(Family, ErrorsNameTheRecordsTensors) {
  const std::string folder = RenamedLlama();
  json config = RenamedConfig("RenamedForCausalLM");
  config["depth"] = 3;
  WriteFile(folder + "config.json", config.dump());
  EXPECT_EQ(Checkpoint::Open(folder).status().message(),
            "tensor tower.2.norm1.weight is missing from the checkpoint");
  config["depth"] = 2;
  config["mlp_width"] = 137;
  WriteFile(folder + "config.json", config.dump());
  EXPECT_EQ(Checkpoint::Open(folder).status().message(),
            "model.safetensors: tensor tower.0.gate.weight has shape [136, 72], the configuration asks for "
            "[137, 72]");
}

TEST(Family, GgufNamesComeFromTheRecord) {
  const std::string path = MakeTempDir() + "/m.gguf";
  WriteFile(path, TinyGguf("renamed").Write());
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().family, &kRenamed);
  ASSERT_NE((*checkpoint)->Find("tower.0.q.weight"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("tower.0.q.weight")->heads.head_dim, 0) << "llama's alone";
  EXPECT_NE((*checkpoint)->Find("words.weight"), nullptr);
  EXPECT_TRUE((*checkpoint)->config().tie_word_embeddings);
}

// Dummy weights with every property that a forward pass branches on.
TEST(Family, ADummyOfMixedPropertiesRuns) {
  const std::string folder = MakeTempDir();
  WriteFile(folder + "/config.json", RenamedConfig("MixedForCausalLM").dump());
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;
  options.dequantize = true;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 32;
  options.max_model_len = 64;
  MiniRequest request{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 8};
  request.sampling.set_num_prompt_logprobs(0);
  MiniOptions run{.max_step_tokens = 32, .num_blocks = 32};
  for (const int world_size : {1, 2}) {
    const auto group =
        RankGroup::Load(folder, world_size, options, run.num_blocks, CpuRanks(), LoadFormat::kDummy);
    ASSERT_TRUE(group.ok()) << group.status();
    EXPECT_EQ((*group)->checkpoint().Find("places.weight")->shape, (std::vector<int64_t>{515, 72}));
    run.chunk = 32;
    const auto whole = RunAll(**group, {request}, run);
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_EQ((*whole)[0].tokens.size(), 8u);
    ASSERT_EQ((*whole)[0].prompt_logprobs.size(), 9u);
    run.chunk = 3;
    const auto chunked = RunAll(**group, {request}, run);
    ASSERT_TRUE(chunked.ok()) << chunked.status();
    EXPECT_EQ((*whole)[0].tokens, (*chunked)[0].tokens);
    for (size_t i = 0; i < 9; ++i) {
      const float logprob = (*whole)[0].prompt_logprobs[i].logprobs(0);
      EXPECT_TRUE(std::isfinite(logprob) && logprob < 0) << logprob;
      EXPECT_EQ(logprob, (*chunked)[0].prompt_logprobs[i].logprobs(0));
    }
  }
}

// A prompt longer than the table of learned positions.
TEST(Family, LearnedPositionsLimitTheModelsLength) {
  const std::string folder = MakeTempDir();
  WriteFile(folder + "/config.json", RenamedConfig("MixedForCausalLM").dump());
  ModelRunnerOptions options{.max_model_len = 513};
  const auto group = RankGroup::Load(folder, 1, options, 64, CpuRanks(), LoadFormat::kDummy);
  EXPECT_EQ(group.status().message(), "max_model_len 513 is more than the 512 positions that the model has");
}

}  // namespace
}  // namespace somnus
