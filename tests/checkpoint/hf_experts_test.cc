// The keys of config.json for a mixture of experts, in the spellings of several releases, and refused values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/family.h"
#include "checkpoint/memory_checkpoint.h"
#include "tests/checkpoint/hf_configs.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Llama's sizes under another class, of four layers, with `more` keys.
json Of(const char* class_name, const char* more) {
  json config = With(Llama(), "architectures", {std::string(class_name) + "ForCausalLM"});
  config["num_hidden_layers"] = 4;
  config.update(json::parse(more));
  return config;
}

std::vector<bool> ExpertLayersOf(const ModelConfig& model) {
  std::vector<bool> layers;
  for (int32_t i = 0; i < model.num_layers; ++i) layers.push_back(model.HasExperts(i));
  return layers;
}

TEST(HfExperts, QwenInTheSpellingsOfTheHubAndOfTransformers) {
  const json hub = Of("Qwen3Moe", R"({"num_experts":16,"num_experts_per_tok":4,"moe_intermediate_size":24,
    "norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[]})");
  json saved = hub;
  saved.erase("num_experts");
  saved["num_local_experts"] = 16;
  for (const json& config : {hub, saved}) {
    const ModelConfig model = Good(config);
    EXPECT_EQ(model.experts.num_experts, 16);
    EXPECT_EQ(model.experts.per_token, 4);
    EXPECT_EQ(model.experts.expert_size, 24);
    EXPECT_TRUE(model.experts.renormalize);
    EXPECT_EQ(model.experts.score, RouterScore::kSoftmax);
    EXPECT_FALSE(model.HasDenseLayer());
  }
  const json windowed =
      With(With(With(hub, "sliding_window", 8), "use_sliding_window", true), "max_window_layers", 2);
  EXPECT_EQ(Good(windowed).AttentionReach(), 8) << "of all layers";
  EXPECT_EQ(Good(With(windowed, "use_sliding_window", false)).AttentionReach(), 0);
  json older = windowed;  // of another class, whose layers take turns below max_window_layers
  older["architectures"] = {"Qwen2MoeForCausalLM"};
  older["max_window_layers"] = 3;
  const ModelConfig turns = Good(older);
  std::vector<int32_t> windows;
  for (int32_t i = 0; i < turns.num_layers; ++i) windows.push_back(turns.AttentionOf(i).window);
  EXPECT_THAT(windows, ElementsAre(8, 0, 8, 0));
  EXPECT_FALSE(Good(With(hub, "norm_topk_prob", nullptr)).experts.renormalize) << "the class's default";
  EXPECT_EQ(Good(With(hub, "num_experts", nullptr)).experts.num_experts, 128) << "null is unset";
}

TEST(HfExperts, WhichLayersHaveThem) {
  const json qwen = Of("Qwen2Moe", R"({"num_experts":8,"num_experts_per_tok":2,"decoder_sparse_step":2})");
  EXPECT_THAT(ExpertLayersOf(Good(qwen)), ElementsAre(false, true, false, true));
  EXPECT_THAT(ExpertLayersOf(Good(With(qwen, "mlp_only_layers", {3, 9}))),
              ElementsAre(false, true, false, false));
  const json glm = Of("Glm4Moe", R"({"n_routed_experts":8,"num_experts_per_tok":2})");
  EXPECT_THAT(ExpertLayersOf(Good(glm)), ElementsAre(false, true, true, true));
  EXPECT_THAT(ExpertLayersOf(Good(With(glm, "first_k_dense_replace", 3))),
              ElementsAre(false, false, false, true));
  EXPECT_THAT(ExpertLayersOf(Good(With(glm, "mlp_layer_types", {"sparse", "dense", "sparse", "dense"}))),
              ElementsAre(true, false, true, false));
  EXPECT_THAT(ErrorOf(With(glm, "mlp_layer_types", {"sparse"})), HasSubstr("mlp_layer_types: not a list"));
  EXPECT_THAT(ErrorOf(With(glm, "mlp_layer_types", {"sparse", "dense", "odd", "dense"})),
              HasSubstr("UNIMPLEMENTED: config.json: mlp_layer_types: a layer of kind \"odd\""));
  const json mixtral = Of("Mixtral", R"({"mlp_layer_types":["dense","sparse","sparse","sparse"]})");
  EXPECT_THAT(ExpertLayersOf(Good(mixtral)), ElementsAre(true, true, true, true)) << "there is no other MLP";
}

TEST(HfExperts, SharedExpertsAndRouters) {
  const ModelConfig qwen = Good(Of("Qwen2Moe", R"({"shared_expert_intermediate_size":40,"qkv_bias":false})"));
  EXPECT_EQ(qwen.experts.shared_size, 40);
  EXPECT_TRUE(qwen.experts.shared_gate);
  EXPECT_FALSE(qwen.attention_qkv_bias);
  const ModelConfig glm = Good(Of("Glm4Moe", R"({"n_shared_experts":2,"moe_intermediate_size":20,"n_group":4,
    "topk_group":2,"routed_scaling_factor":2.5,"use_qk_norm":true,"attention_bias":true})"));
  EXPECT_EQ(glm.experts.shared_size, 40);
  EXPECT_FALSE(glm.experts.shared_gate);
  EXPECT_EQ(glm.experts.score, RouterScore::kSigmoid);
  EXPECT_TRUE(glm.experts.correction && glm.experts.renormalize && glm.head_norms);
  EXPECT_TRUE(glm.attention_qkv_bias && !glm.attention_out_bias);
  EXPECT_EQ(glm.experts.num_groups, 4);
  EXPECT_EQ(glm.experts.top_groups, 2);
  EXPECT_EQ(glm.experts.scale, 2.5);
  const ModelConfig mixtral = Good(Of("Mixtral", R"({"num_local_experts":4})"));
  EXPECT_EQ(mixtral.experts.expert_size, 96) << "intermediate_size";
  EXPECT_EQ(mixtral.experts.per_token, 2);
  EXPECT_TRUE(mixtral.experts.renormalize);
}

TEST(HfExperts, EachExpertHasTensorsOfItsOwn) {
  const ModelConfig model = Good(Of("Mixtral", R"({"num_local_experts":3,"num_hidden_layers":1})"));
  std::vector<std::string> names;
  EXPECT_TRUE(ForEachTensor(model, [&](const std::string& name, const std::vector<int64_t>&) {
                names.push_back(name);
                return absl::OkStatus();
              }).ok());
  const std::string last = "model.layers.0.block_sparse_moe.experts.2.w2.weight";
  EXPECT_EQ(std::count(names.begin(), names.end(), last), 1);
  EXPECT_EQ(std::count_if(names.begin(), names.end(),
                          [](const std::string& name) { return name.find("experts.") != std::string::npos; }),
            9);
}

// Clients and files may have the names of transformers' modules.
TEST(HfExperts, ModulesOfMixtralHaveOtherNamesThanFiles) {
  const ModelConfig model = Good(Of("Mixtral", R"({"num_local_experts":3})"));
  const std::pair<const char*, const char*> names[] = {
      {"model.layers.1.mlp.gate.weight", "model.layers.1.block_sparse_moe.gate.weight"},
      {"model.layers.12.mlp.experts.2.w1.qweight", "model.layers.12.block_sparse_moe.experts.2.w1.qweight"},
      {"model.layers.1.mlpx.weight", "model.layers.1.mlpx.weight"},
      {"model.layers.1", "model.layers.1"},
      {"model.layers.", "model.layers."},
      {"mlp.gate.weight", "mlp.gate.weight"},
      {"model.norm.weight", "model.norm.weight"}};
  for (const auto& [module, file] : names) {
    EXPECT_EQ(FileName(*model.family, module), file);
    EXPECT_EQ(FileName(*Good(Llama()).family, module), module);
  }
  const auto sent = MemoryCheckpoint::Create(model);
  for (const std::string name : {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}) {
    const SentTensor* const of_module = sent->FindSent("model.layers.3.mlp." + name);
    ASSERT_NE(of_module, nullptr) << name;
    EXPECT_EQ(of_module, sent->FindSent("model.layers.3.block_sparse_moe." + name));
  }
}

// A directory of a Mixtral of one layer and two experts, whose router has the module's name, with `experts`.
std::string WriteStacked(const std::vector<std::pair<std::string, std::vector<int64_t>>>& experts) {
  json config = Of("Mixtral", R"({"num_local_experts":2,"num_hidden_layers":1,"hidden_size":8,
    "intermediate_size":6,"vocab_size":10,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":4})");
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
      {"model.embed_tokens.weight", {10, 8}},
      {"model.norm.weight", {8}},
      {"model.layers.0.input_layernorm.weight", {8}},
      {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
      {"model.layers.0.self_attn.k_proj.weight", {4, 8}},
      {"model.layers.0.self_attn.v_proj.weight", {4, 8}},
      {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
      {"model.layers.0.post_attention_layernorm.weight", {8}},
      {"model.layers.0.mlp.gate.weight", {2, 8}}};
  tensors.insert(tensors.end(), experts.begin(), experts.end());
  const std::string directory = MakeTempDir();
  WriteFile(directory + "/config.json", config.dump());
  WriteFile(directory + "/model.safetensors", SafetensorsOf(tensors));
  return directory;
}

TEST(HfExperts, MayLieInOneTensor) {
  const std::string prefix = "model.layers.0.mlp.experts.";
  const auto checkpoint = Checkpoint::Open(
      WriteStacked({{prefix + "gate_up_proj", {2, 12, 8}}, {prefix + "down_proj", {2, 8, 6}}}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  // Elements count up over the file, in which the experts follow the router.
  const auto first = [&](const std::string& name) {
    const TensorInfo* const tensor = (*checkpoint)->Find(name);
    float value = -1;
    EXPECT_TRUE(tensor != nullptr && (*checkpoint)->ReadRows(*tensor, 0, 1, 0, 1, &value).ok()) << name;
    return value;
  };
  const std::string block = "model.layers.0.block_sparse_moe.", expert = block + "experts.1.";
  const float both = first(block + "gate.weight") + 2 * 8, down = both + 2 * 12 * 8;
  EXPECT_EQ(first(expert + "w1.weight"), both + 12 * 8);
  EXPECT_EQ(first(expert + "w3.weight"), both + 12 * 8 + 6 * 8);
  EXPECT_EQ(first(expert + "w2.weight"), down + 8 * 6);

  const auto error_of = [](const std::string& directory) {
    return Checkpoint::Open(directory).status().ToString();
  };
  EXPECT_THAT(
      error_of(WriteStacked({{prefix + "gate_up_proj", {2, 8, 12}}, {prefix + "down_proj", {2, 8, 6}}})),
      HasSubstr("experts.gate_up_proj has shape [2, 8, 12]"));
  EXPECT_THAT(error_of(WriteStacked({{prefix + "gate_up_proj", {2, 12, 8}}})),
              HasSubstr("experts.0.w2.weight is missing"));
  EXPECT_THAT(error_of(WriteStacked({{prefix + "gate_up_proj", {2, 12, 8}},
                                     {prefix + "down_proj", {2, 8, 6}},
                                     {prefix + "1.w2.weight", {8, 6}}})),
              HasSubstr("experts.1.w2.weight is there more than once"));
}

TEST(HfExperts, NumbersThatDoNotFitAreRefusedByName) {
  const json glm = Of("Glm4Moe", R"({"n_routed_experts":8,"num_experts_per_tok":2})");
  EXPECT_THAT(ErrorOf(With(glm, "num_experts_per_tok", 9)), HasSubstr("num_experts_per_tok: 9 of 8 experts"));
  EXPECT_THAT(ErrorOf(With(glm, "n_routed_experts", 5000)), HasSubstr("number of experts 5000"));
  EXPECT_THAT(ErrorOf(With(glm, "n_group", 3)), HasSubstr("n_group: 3 does not divide 8"));
  EXPECT_THAT(ErrorOf(With(With(glm, "n_group", 4), "topk_group", 5)), HasSubstr("topk_group: 5 of 4"));
  EXPECT_THAT(ErrorOf(With(glm, "routed_scaling_factor", 0)), HasSubstr("routed_scaling_factor"));
  EXPECT_THAT(ErrorOf(With(glm, "moe_intermediate_size", 0)), HasSubstr("moe_intermediate_size"));
  EXPECT_THAT(ErrorOf(With(glm, "n_shared_experts", -1)), HasSubstr("n_shared_experts"));
}

}  // namespace
}  // namespace somnus
