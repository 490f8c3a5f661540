// The same configuration in the spellings of config.json through the years, for every family: rope_scaling
// and rope_theta, rope_parameters, an object for each kind of layer, absent keys and nulls. All spellings are
// the same model, or an error that names the key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/family.h"
#include "tests/checkpoint/hf_configs.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct Row {
  const char* class_name;
  const char* more = "{}";     // keys that the family must have
  bool needs_rope = false;     // a file without any rotary embedding is an error
  bool layered_rope = false;   // rope_parameters may have an object for each kind of layer
  bool yarn_is_other = false;  // "yarn" is not YaRN
};

const Row kRows[] = {
    {"Llama"},
    {"Mistral"},
    {"Ministral"},
    {"Ministral3", "{}", true},
    {"Qwen2", R"({"use_sliding_window":true,"max_window_layers":1})"},
    {"Qwen3", R"({"use_sliding_window":true,"max_window_layers":1})"},
    {"SmolLM3"},
    {"Phi3", "{}", false, false, true},
    {"Granite"},
    {"GraniteMoeHybrid", R"({"layer_types":["attention","attention"],"num_local_experts":0,
      "shared_intermediate_size":48,"position_embedding_type":"rope"})"},
    {"Olmo2"},
    {"Olmo3", "{}", false, true},
    {"Gemma2"},
    {"Gemma3", "{}", false, true},
    {"Glm"},
    {"Glm4"},
};

constexpr char kLatent[] = R"({"kv_lora_rank":24,"q_lora_rank":20,"qk_nope_head_dim":16,"qk_rope_head_dim":8,
  "v_head_dim":20,"num_experts":32,"num_experts_per_tok":2,"moe_intermediate_size":32,
  "first_k_dense_replace":1})";

const Row kMixtures[] = {
    {"Qwen2Moe", R"({"num_experts":32,"num_experts_per_tok":2,"moe_intermediate_size":32,
      "shared_expert_intermediate_size":40,"decoder_sparse_step":2,"use_sliding_window":true,
      "max_window_layers":1,"sliding_window":128})"},
    {"Qwen3Moe", R"({"num_experts":32,"num_experts_per_tok":2,"moe_intermediate_size":32,
      "norm_topk_prob":true,"decoder_sparse_step":2})"},
    {"Mixtral", R"({"num_experts":32})"},
    {"Glm4Moe", R"({"num_experts":32,"num_experts_per_tok":2,"moe_intermediate_size":32})"},
    {"DeepseekV3", kLatent},
    {"Glm4MoeLite", kLatent},
    {"GptOss", R"({"num_experts":32,"attention_bias":true})", true},
};

class HfVariants : public testing::TestWithParam<Row> {
 protected:
  json Config(const json& more = json::object()) const {
    json config = With(Llama(), "architectures", {absl::StrCat(GetParam().class_name, "ForCausalLM")});
    config.update(json::parse(GetParam().more));
    config.update(more);
    return config;
  }
};
std::string ClassName(const testing::TestParamInfo<Row>& info) { return info.param.class_name; }
INSTANTIATE_TEST_SUITE_P(Families, HfVariants, testing::ValuesIn(kRows), ClassName);
INSTANTIATE_TEST_SUITE_P(Mixtures, HfVariants, testing::ValuesIn(kMixtures), ClassName);

class HfMixtures : public HfVariants {};
INSTANTIATE_TEST_SUITE_P(Mixtures, HfMixtures, testing::ValuesIn(kMixtures), ClassName);

std::string Text(const RopeConfig& rope) {
  return absl::StrCat(static_cast<int>(rope.type), " theta ", rope.theta, " factor ", rope.factor,
                      " original ", rope.original_max_position_embeddings, " betas ", rope.beta_fast, " ",
                      rope.beta_slow, " attention ", rope.attention_factor, " dims ", rope.rotary_dim,
                      " factors ", absl::StrJoin(rope.freq_factors, ","));
}

std::string Text(const ExpertsConfig& experts) {
  return absl::StrCat(experts.num_experts, " experts, ", experts.per_token, " of ", experts.expert_size,
                      " shared ", experts.shared_size, experts.shared_gate, " score ",
                      static_cast<int>(experts.score), experts.renormalize, experts.correction, " scale ",
                      experts.scale, " groups ", experts.top_groups, " of ", experts.num_groups);
}

// The fields that the spellings set.
std::string Text(const ModelConfig& model) {
  const LatentConfig& latent = model.latent;
  std::string text = absl::StrCat(Text(model.rope), " | ", Text(model.local_rope), " | positions ",
                                  model.max_position_embeddings, " heads ", model.num_kv_heads, " of ",
                                  model.head_dim, " scale ", model.attention_scale, " | ");
  absl::StrAppend(&text, Text(model.experts), " | latent ", latent.rank, " ", latent.query_rank, " ",
                  latent.nope, " ", latent.rope, " ", latent.value, latent.interleaved, " |");
  for (int32_t i = 0; i < model.num_layers; ++i)
    absl::StrAppend(&text, " ", model.AttentionOf(i).window, ":", static_cast<int>(model.AttentionOf(i).rope),
                    model.HasExperts(i) ? "e" : "");
  return text;
}

TEST_P(HfVariants, AnUnscaledRope) {
  const std::vector<json> spellings = {
      {{"rope_theta", 5e5}, {"rope_scaling", nullptr}},
      {{"rope_theta", 5e5}},
      {{"rope_theta", 5e5}, {"rope_scaling", {{"rope_type", "default"}}}},
      {{"rope_theta", 5e5}, {"rope_scaling", {{"type", "default"}}}},
      {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}},
      {{"rope_parameters", {{"rope_theta", 5e5}}}, {"rope_scaling", nullptr}},
      {{"rope_parameters", {{"rope_type", "default"}}}, {"rope_theta", 5e5}},
      {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}, {"factor", nullptr}}}},
  };
  const std::string wanted = Text(Good(Config(spellings.back())));
  EXPECT_THAT(wanted, HasSubstr("theta 500000 factor 1 "));
  for (const json& spelling : spellings) {
    if (GetParam().needs_rope && !Config(spelling).contains("rope_parameters")) continue;
    EXPECT_EQ(Text(Good(Config(spelling))), wanted) << spelling;
  }
  if (!GetParam().needs_rope) return;
  EXPECT_THAT(ErrorOf(Config({{"rope_theta", 5e5}})), HasSubstr("rope_parameters: missing"));
}

TEST_P(HfVariants, AScaledRope) {
  const std::vector<json> scalings = {
      {{"rope_type", "linear"}, {"factor", 4}},
      {{"rope_type", "llama3"},
       {"factor", 8},
       {"low_freq_factor", 1},
       {"high_freq_factor", 4},
       {"original_max_position_embeddings", 64}},
      {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}},
      {{"rope_type", "yarn"},
       {"factor", 4},
       {"original_max_position_embeddings", 64},
       {"beta_fast", nullptr},
       {"mscale", nullptr}},
  };
  for (const json& scaling : scalings) {
    if (GetParam().yarn_is_other && scaling["rope_type"] == "yarn") continue;
    json old = scaling, current = scaling;
    old.erase("rope_type");
    old["type"] = scaling["rope_type"];
    current["rope_theta"] = 5e5;
    const std::string wanted = Text(Good(Config({{"rope_parameters", current}})));
    EXPECT_THAT(wanted, HasSubstr(absl::StrCat("theta 500000 factor ", scaling["factor"].get<int>(), " ")));
    for (const json& spelling : {scaling, old}) {
      EXPECT_EQ(Text(Good(Config({{"rope_scaling", spelling}, {"rope_theta", 5e5}}))), wanted) << spelling;
      EXPECT_EQ(Text(Good(Config({{"rope_parameters", spelling}, {"rope_theta", 5e5}}))), wanted) << spelling;
    }
  }
  json unknown = {{"rope_parameters", {{"rope_type", "spiral"}, {"factor", 2}}}};
  EXPECT_THAT(ErrorOf(Config(unknown)), HasSubstr("rope_type: spiral is not supported"));
  unknown["rope_parameters"] = {{"rope_type", "linear"}};
  EXPECT_THAT(ErrorOf(Config(unknown)), HasSubstr("factor: missing"));
  unknown["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 0}};
  EXPECT_THAT(ErrorOf(Config(unknown)), HasSubstr("factor: not above zero"));
  EXPECT_THAT(ErrorOf(Config({{"rope_parameters", "linear"}})), HasSubstr("rope_parameters: not an object"));
}

TEST_P(HfVariants, ARopeForEachKindOfLayer) {
  const json config =
      Config({{"rope_parameters",
               {{"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}}},
                {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}});
  if (!GetParam().layered_rope) {
    // OLMo 3's GGUF files share OLMo 2's record; all layers are full.
    const bool is_olmo2 = std::string(GetParam().class_name) == "Olmo2";
    EXPECT_THAT(
        ErrorOf(config),
        HasSubstr(is_olmo2 ? "OK" : "rope_parameters.full_attention: a rope of its own per kind of layer"));
    return;
  }
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.rope.theta, 5e5);
  EXPECT_EQ(model.rope.factor, 8);
  EXPECT_EQ(model.local_rope.theta, 2e4);
  EXPECT_EQ(model.local_rope.factor, 1);
  EXPECT_EQ(model.AttentionOf(0).rope, LayerRope::kLocal);
}

TEST_P(HfVariants, NullsAreAbsentKeys) {
  const json rope = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
  const std::string wanted = Text(Good(Config(rope)));
  for (const char* key :
       {"rope_scaling", "rope_theta", "layer_types", "partial_rotary_factor", "rms_norm_eps",
        "sliding_window_pattern", "max_window_layers", "original_max_position_embeddings", "no_rope_layers",
        "no_rope_layer_interval", "rope_local_base_freq", "attention_bias", "tie_word_embeddings",
        "quantization_config", "pad_token_id", "text_config"}) {
    json config = Config(rope);
    if (config.contains(key)) continue;  // the family must have the key
    config[key] = nullptr;
    EXPECT_EQ(Text(Good(config)), wanted) << key;
  }
  // Here null has a special meaning: no window.
  const ModelConfig without = Good(With(Config(rope), "sliding_window", nullptr));
  for (int32_t i = 0; i < without.num_layers; ++i) EXPECT_EQ(without.AttentionOf(i).window, 0);
}

// Every family's number of experts may have each of the three names, also where the other two are null. A
// list of the layers wins over a rule.
TEST_P(HfMixtures, ExpertsInTheSpellingsOfTheReleases) {
  json config = Config({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}});
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.experts.num_experts, 32);
  config.erase("num_experts");
  const char* const names[] = {"num_experts", "num_local_experts", "n_routed_experts"};
  for (const char* name : names) {
    json named = With(config, name, 32);
    EXPECT_EQ(Text(Good(named)), Text(model)) << name;
    for (const char* other : names) {
      if (other != name) named[other] = nullptr;
    }
    EXPECT_EQ(Text(Good(named)), Text(model)) << name << " beside nulls";
    EXPECT_EQ(Good(With(config, name, 16)).experts.num_experts, 16);
  }
  EXPECT_GT(Good(config).experts.num_experts, 4) << "the class's default";

  // The layers by name are those by rule.
  const json listed = With(With(config, "num_experts", 32), "mlp_layer_types", {"dense", "sparse"});
  const bool all =
      std::string(GetParam().class_name) == "Mixtral" || std::string(GetParam().class_name) == "GptOss";
  EXPECT_EQ(model.HasExperts(0), all);
  EXPECT_TRUE(model.HasExperts(1));
  json without_rule = listed;
  for (const char* key : {"decoder_sparse_step", "first_k_dense_replace"}) without_rule.erase(key);
  EXPECT_EQ(Text(Good(listed)), Text(model));
  EXPECT_EQ(Text(Good(without_rule)), Text(model));
}

TEST_P(HfMixtures, NullsAreAbsentKeys) {
  const json rope = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
  for (const char* key : {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
                          "decoder_sparse_step", "mlp_only_layers", "mlp_layer_types", "qkv_bias", "n_group",
                          "first_k_dense_replace", "n_shared_experts", "shared_expert_intermediate_size",
                          "topk_group", "routed_scaling_factor", "use_qk_norm", "rope_interleave",
                          "swiglu_limit", "swiglu_alpha", "num_nextn_predict_layers"}) {
    json config = Config(rope);
    config.erase(key);
    const std::string wanted = Text(Good(config));
    config[key] = nullptr;
    EXPECT_EQ(Text(Good(config)), wanted) << key;
  }
}

// Keys of other kinds of layers, which stand in files of every family that transformers 5 has written.
TEST_P(HfVariants, LayerTypesOfFullAttention) {
  const json rope = {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
  const ModelConfig model = Good(With(Config(rope), "layer_types", {"full_attention", "full_attention"}));
  for (int32_t i = 0; i < model.num_layers; ++i) EXPECT_EQ(model.AttentionOf(i).window, 0);
  EXPECT_THAT(ErrorOf(With(Config(rope), "layer_types", {"full_attention"})),
              HasSubstr("layer_types: shorter"));
  EXPECT_THAT(ErrorOf(With(Config(rope), "layer_types", {"full_attention", "conv"})),
              HasSubstr("layer_types: a layer of kind \"conv\""));
}

// The text part of a wrapper with images is the same model.
TEST_P(HfVariants, InAWrapper) {
  json text = Config({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}});
  const std::string wanted = Text(Good(text));
  const std::string type = Good(text).family->model_type;
  text.erase("architectures");
  text["model_type"] = type;
  const json wrapper = {{"architectures", {"SomeForConditionalGeneration"}},
                        {"model_type", "some"},
                        {"text_config", text},
                        {"vision_config", {{"hidden_size", 8}}}};
  EXPECT_EQ(Text(Good(wrapper)), wanted);
}

// transformers 5 writes the key on both levels, with the classes' defaults, and ties by the outer one.
TEST_P(HfVariants, AWrapperIsTiedWhereEitherLevelSaysSo) {
  json text = Config({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}});
  text["model_type"] = Good(text).family->model_type;
  text.erase("architectures");
  const json levels[] = {nullptr, false, true};
  for (const json& outer : levels) {
    for (const json& inner : levels) {
      SCOPED_TRACE(testing::Message() << outer << " around " << inner);
      json wrapper = {{"architectures", {"SomeForConditionalGeneration"}}, {"text_config", text}};
      wrapper["tie_word_embeddings"] = outer;
      wrapper["text_config"]["tie_word_embeddings"] = inner;
      const ModelConfig model = Good(wrapper);
      // Where both are silent the family's default holds.
      const bool given = !outer.is_null() || !inner.is_null();
      if (given) {
        EXPECT_EQ(model.tie_word_embeddings, outer == true || inner == true);
      }
      EXPECT_EQ(model.tie_word_embeddings_given, given);
    }
  }
}

}  // namespace
}  // namespace somnus
