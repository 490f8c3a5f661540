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

class HfVariants : public testing::TestWithParam<Row> {
 protected:
  json Config(const json& more = json::object()) const {
    json config = With(Llama(), "architectures", {absl::StrCat(GetParam().class_name, "ForCausalLM")});
    config.update(json::parse(GetParam().more));
    config.update(more);
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, HfVariants, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.class_name; });

std::string Text(const RopeConfig& rope) {
  return absl::StrCat(static_cast<int>(rope.type), " theta ", rope.theta, " factor ", rope.factor,
                      " original ", rope.original_max_position_embeddings, " betas ", rope.beta_fast, " ",
                      rope.beta_slow, " attention ", rope.attention_factor, " dims ", rope.rotary_dim,
                      " factors ", absl::StrJoin(rope.freq_factors, ","));
}

// The fields that the spellings set.
std::string Text(const ModelConfig& model) {
  std::string text = absl::StrCat(Text(model.rope), " | ", Text(model.local_rope), " | positions ",
                                  model.max_position_embeddings, " heads ", model.num_kv_heads, " of ",
                                  model.head_dim, " |");
  for (int32_t i = 0; i < model.num_layers; ++i)
    absl::StrAppend(&text, " ", model.AttentionOf(i).window, ":",
                    static_cast<int>(model.AttentionOf(i).rope));
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

}  // namespace
}  // namespace somnus
