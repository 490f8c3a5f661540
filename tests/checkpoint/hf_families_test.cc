// The keys of config.json for each family beyond Llama's, in old and new spellings, and refused values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/family.h"
#include "tests/checkpoint/hf_configs.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Llama's sizes under another class, with `more` keys.
json Of(const char* class_name, const char* more = "{}") {
  json config = With(Llama(), "architectures", {std::string(class_name) + "ForCausalLM"});
  config.update(json::parse(more));
  return config;
}

std::vector<int32_t> Windows(const ModelConfig& model) {
  std::vector<int32_t> windows;
  for (int32_t i = 0; i < model.num_layers; ++i) windows.push_back(model.AttentionOf(i).window);
  return windows;
}

TEST(HfFamilies, Gemma3InOldAndNewSpelling) {
  const json old = Of("Gemma3", R"({"num_hidden_layers":4,"sliding_window":16,"sliding_window_pattern":2,
    "rope_theta":1e6,"rope_local_base_freq":2e4,"rope_scaling":{"rope_type":"linear","factor":8}})");
  const json current = Of("Gemma3", R"({"num_hidden_layers":4,"sliding_window":16,
    "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],
    "rope_parameters":{"full_attention":{"rope_type":"linear","factor":8,"rope_theta":1e6},
                       "sliding_attention":{"rope_type":"default","rope_theta":2e4}}})");
  for (const json& config : {old, current}) {
    const ModelConfig model = Good(config);
    EXPECT_THAT(Windows(model), ElementsAre(16, 0, 16, 0));
    EXPECT_EQ(model.AttentionOf(0).rope, LayerRope::kLocal);
    EXPECT_EQ(model.AttentionOf(1).rope, LayerRope::kMain);
    EXPECT_EQ(model.rope.type, RopeConfig::Type::kLinear);
    EXPECT_EQ(model.rope.theta, 1e6);
    EXPECT_EQ(model.local_rope.type, RopeConfig::Type::kDefault);
    EXPECT_EQ(model.local_rope.theta, 2e4);
    EXPECT_EQ(model.head_dim, 256);
    EXPECT_EQ(model.attention_scale, 1.0 / 16);
    EXPECT_EQ(model.embedding_scale, 8);
    EXPECT_EQ(model.attention_softcap, 0);
    EXPECT_EQ(model.activation, Activation::kGeluTanh);
    EXPECT_TRUE(model.tie_word_embeddings);
  }
  EXPECT_THAT(ErrorOf(Of("Gemma3", R"({"use_bidirectional_attention":true})")),
              HasSubstr("UNIMPLEMENTED: config.json: use_bidirectional_attention"));
}

// Files of the text part may leave out values that are the class's defaults, even the number of heads.
TEST(HfFamilies, Gemma3InAWrapper) {
  json config = json::parse(R"({"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3",
    "text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,
      "num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},
    "vision_config":{"hidden_size":1152},"eos_token_id":[1,106],"torch_dtype":"bfloat16"})");
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.num_heads, 8);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_EQ(model.vocab_size, 262208);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(1, 106));
  EXPECT_EQ(model.AttentionOf(4).window, 1024);
  EXPECT_EQ(model.AttentionOf(5).window, 0);  // the sixth
}

TEST(HfFamilies, Gemma2CapsUnlessNull) {
  const ModelConfig model = Good(Of("Gemma2", R"({"sliding_window":8,"query_pre_attn_scalar":144})"));
  EXPECT_THAT(Windows(model), ElementsAre(8, 0));
  EXPECT_EQ(model.AttentionOf(0).rope, LayerRope::kMain);
  EXPECT_EQ(model.attention_softcap, 50);
  EXPECT_EQ(model.logits_softcap, 30);
  EXPECT_EQ(model.attention_scale, 1.0 / 12);
  const ModelConfig plain =
      Good(Of("Gemma2", R"({"attn_logit_softcapping":null,"final_logit_softcapping":null})"));
  EXPECT_EQ(plain.attention_softcap, 0);
  EXPECT_EQ(plain.logits_softcap, 0);
}

TEST(HfFamilies, MinistralScalesQueries) {
  const ModelConfig model = Good(Of("Ministral3", R"({"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,
    "factor":16.0,"original_max_position_embeddings":128,"mscale":1.0,"mscale_all_dim":1.0,
    "llama_4_scaling_beta":0.1}})"));
  EXPECT_EQ(model.query_temperature, 0.1);
  EXPECT_EQ(model.rope.original_max_position_embeddings, 128);
  EXPECT_EQ(model.rope.attention_factor, 1);
  EXPECT_EQ(model.max_position_embeddings, 2048);
  EXPECT_EQ(model.head_dim, 128);
}

TEST(HfFamilies, SmolLm3LeavesOutRotations) {
  const auto ropes = [](const json& config) {
    const ModelConfig model = Good(config);
    std::vector<bool> has;
    for (int32_t i = 0; i < model.num_layers; ++i)
      has.push_back(model.AttentionOf(i).rope != LayerRope::kNone);
    return has;
  };
  EXPECT_THAT(ropes(Of("SmolLM3", R"({"num_hidden_layers":5})")), ElementsAre(true, true, true, false, true));
  EXPECT_THAT(ropes(Of("SmolLM3", R"({"no_rope_layer_interval":2})")), ElementsAre(true, false));
  EXPECT_THAT(ropes(Of("SmolLM3", R"({"no_rope_layers":[0,1,1]})")), ElementsAre(false, true));
  EXPECT_THAT(ErrorOf(Of("SmolLM3", R"({"no_rope_layers":[0]})")), HasSubstr("no_rope_layers: shorter"));
  const json windowed = Of("SmolLM3", R"({"no_rope_layers":[0,1],"sliding_window":8})");
  EXPECT_THAT(Windows(Good(windowed)), ElementsAre(0, 0));
  EXPECT_THAT(Windows(Good(With(windowed, "use_sliding_window", true))), ElementsAre(8, 0));
}

// Python's json writes numbers that JSON does not have: transformers so writes a hybrid's time_step_limit.
TEST(HfFamilies, NumbersThatAreNotFiniteStandOnlyWhereNobodyReadsThem) {
  const std::string text = Of("GraniteMoeHybrid", R"({"layer_types":["attention","attention"],
    "num_local_experts":0,"shared_intermediate_size":48})")
                               .dump();
  const auto error_with = [&](const std::string& member) {
    return ParseHfConfig("{" + member + "," + text.substr(1), "").status().ToString();
  };
  EXPECT_EQ(error_with(R"("time_step_limit":[0.0,Infinity])"), "OK");
  EXPECT_EQ(error_with(R"("a":[NaN,-Infinity , {"b":NaN}],"c":"NaN \"Infinity","d\\":Infinity)"), "OK");
  for (const char* value : {"NaN", "Infinity", "-Infinity"}) {
    const std::string member = std::string(R"("logits_scaling":)") + value;
    EXPECT_THAT(error_with(member), HasSubstr("config.json: logits_scaling: not a finite number"));
  }
  EXPECT_THAT(error_with(R"("initializer":NaN,"rope_theta":Infinity)"),
              HasSubstr("rope_theta: not a finite"));
  EXPECT_THAT(error_with(R"("position_embedding_type":NaN)"), HasSubstr("position_embedding_type"));
  for (const char* value : {"nan", "inf", "-NaN", "+Infinity", "Infinity1", "NaNNaN", "Inf", "--Infinity"})
    EXPECT_THAT(error_with(std::string(R"("a":)") + value), HasSubstr("config.json: not valid JSON"))
        << value;
}

TEST(HfFamilies, GraniteHybridsOfAttentionAlone) {
  const json config = Of("GraniteMoeHybrid", R"({"layer_types":["attention","attention"],
    "num_local_experts":0,"shared_intermediate_size":48,"position_embedding_type":"rope"})");
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.intermediate_size, 48);
  EXPECT_EQ(model.rope.type, RopeConfig::Type::kDefault);
  EXPECT_EQ(Good(With(config, "position_embedding_type", "nope")).rope.type, RopeConfig::Type::kNone);
  EXPECT_THAT(ErrorOf(With(config, "layer_types", {"mamba", "attention"})),
              HasSubstr("UNIMPLEMENTED: config.json: layer_types: a layer of kind \"mamba\""));
  json older = config;
  older.erase("layer_types");
  EXPECT_THAT(ErrorOf(older), HasSubstr("layer_types: Mamba layers"));
  EXPECT_TRUE(Good(With(older, "layers_block_type", {"attention", "attention"})).layer_attention.empty());
  EXPECT_THAT(ErrorOf(With(older, "layers_block_type", {"attention", "mamba"})),
              HasSubstr("layers_block_type: a layer of kind \"mamba\""));
  EXPECT_THAT(ErrorOf(With(config, "num_local_experts", 8)), HasSubstr("num_local_experts: a mixture"));
}

TEST(HfFamilies, PartialRotation) {
  EXPECT_EQ(Good(Of("Glm4", R"({"head_dim":12})")).rope.rotary_dim, 6);
  EXPECT_EQ(Good(Of("Phi3")).rope.rotary_dim, 0);
  EXPECT_EQ(Good(Of("Phi3", R"({"partial_rotary_factor":0.75})")).RotaryDim(), 12);
  EXPECT_THAT(ErrorOf(Of("Glm4", R"({"head_dim":10})")),
              HasSubstr("partial_rotary_factor: 0.5 of head_dim 10 is not a number of pairs"));
  EXPECT_THAT(ErrorOf(Of("Mistral", R"({"partial_rotary_factor":0.5})")),
              HasSubstr("UNIMPLEMENTED: config.json: rope_parameters.partial_rotary_factor"));
}

TEST(HfFamilies, GlmHasBiasesAndThreeStops) {
  json config = Of("Glm4");
  config.erase("eos_token_id");
  const ModelConfig model = Good(config);
  EXPECT_TRUE(model.attention_qkv_bias);
  EXPECT_FALSE(model.attention_out_bias);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(151329, 151336, 151338));
  EXPECT_FALSE(Good(With(config, "attention_bias", false)).attention_qkv_bias);
}

TEST(HfFamilies, LongRopeInAllSpellings) {
  constexpr char kLists[] = R"("short_factor":[1,1,1,1,1,1,1,1],"long_factor":[1,2,3,4,5,6,7,8])";
  for (const char* type : {"longrope", "su", "yarn"}) {  // old files of Phi-3 mean LongRoPE by "yarn"
    json config = Of("Phi3", R"({"original_max_position_embeddings":64})");
    config["rope_scaling"] = json::parse(std::string("{\"type\":\"") + type + "\"," + kLists + "}");
    const ModelConfig model = Good(config);
    EXPECT_EQ(model.rope.original_max_position_embeddings, 64);
    EXPECT_THAT(model.rope.freq_factors, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_THAT(model.rope.short_factors, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1));
    EXPECT_DOUBLE_EQ(model.rope.attention_factor, std::sqrt(1 + std::log(512.0 / 64) / std::log(64.0)));
    config["rope_scaling"]["long_factor"] = {1, 2};
    EXPECT_THAT(ErrorOf(config), HasSubstr("rope_scaling.long_factor: not a list of 8 numbers"));
  }
}

TEST(HfFamilies, WrongOrMissingKeysAreNamed) {
  EXPECT_THAT(ErrorOf(Of("Ministral3")), HasSubstr("config.json: rope_parameters: missing"));
  EXPECT_THAT(ErrorOf(Of("Granite", R"({"logits_scaling":0})")), HasSubstr("logits_scaling: not above zero"));
  EXPECT_THAT(ErrorOf(Of("Gemma2", R"({"layer_types":["sliding_attention","linear_attention"]})")),
              HasSubstr("layer_types: a layer of kind \"linear_attention\""));
  EXPECT_THAT(ErrorOf(Of("Llama", R"({"layer_types":["sliding_attention","full_attention"]})")),
              HasSubstr("layer_types: sliding_attention in this family"));
}

// As on the hub: DeepSeek V3 before transformers 5, with the class's defaults for absent keys.
TEST(HfFamilies, DeepSeekV3HasLatentAttention) {
  const json hub = json::parse(R"({"architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3",
    "hidden_size":7168,"intermediate_size":18432,"num_hidden_layers":61,"num_attention_heads":128,
    "num_key_value_heads":128,"kv_lora_rank":512,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,
    "v_head_dim":128,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"n_group":8,
    "topk_group":4,"moe_intermediate_size":2048,"first_k_dense_replace":3,"routed_scaling_factor":2.5,
    "scoring_func":"sigmoid","norm_topk_prob":true,"num_nextn_predict_layers":1,"vocab_size":129280,
    "max_position_embeddings":163840,"rms_norm_eps":1e-6,"rope_theta":10000,"tie_word_embeddings":false,
    "rope_scaling":{"type":"yarn","factor":40,"original_max_position_embeddings":4096,"beta_fast":32,"beta_slow":1,
                    "mscale":1.0,"mscale_all_dim":1.0},
    "quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128]}})");
  const ModelConfig model = Good(hub);
  EXPECT_EQ(model.latent,
            (LatentConfig{.rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128}));
  EXPECT_EQ(model.num_kv_heads, 1);
  EXPECT_EQ(model.head_dim, 576);
  EXPECT_EQ(model.RotaryDim(), 64);
  EXPECT_EQ(model.rope.attention_factor, 1);
  const double attention = 0.1 * std::log(40) + 1;
  EXPECT_NEAR(model.attention_scale, attention * attention / std::sqrt(192), 1e-12);
  EXPECT_EQ(model.experts.num_experts, 256);
  EXPECT_EQ(model.experts.num_groups, 8);
  EXPECT_EQ(model.experts.shared_size, 2048);
  EXPECT_EQ(model.experts.score, RouterScore::kSigmoid);
  EXPECT_FALSE(model.HasExperts(2));
  EXPECT_TRUE(model.HasExperts(3));
  // Kimi K2 is of this class; a rank of null means that queries are a single product.
  json kimi = With(With(hub, "model_type", "kimi_k2"), "q_lora_rank", nullptr);
  EXPECT_EQ(Good(kimi).latent.query_rank, 0);
  kimi.erase("q_lora_rank");
  EXPECT_EQ(Good(kimi).latent.query_rank, 1536);
  for (const char* key :
       {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    for (const int32_t size : {-1, 0, std::numeric_limits<int32_t>::max()})
      EXPECT_THAT(ErrorOf(With(hub, key, size)), HasSubstr(std::string("config.json: ") + key + ": "));
  }
  json scaled = hub;
  scaled["rope_scaling"]["llama_4_scaling_beta"] = 0.1;
  EXPECT_THAT(ErrorOf(scaled), HasSubstr("UNIMPLEMENTED: config.json: llama_4_scaling_beta"));
  json silent = hub;
  silent.erase("n_group");
  silent.erase("topk_group");
  EXPECT_EQ(Good(silent).experts.num_groups, 8);
  EXPECT_EQ(Good(silent).experts.top_groups, 4);
  EXPECT_THAT(ErrorOf(With(hub, "qk_rope_head_dim", 63)),
              HasSubstr("qk_rope_head_dim: not a number of pairs"));
}

TEST(HfFamilies, GptOssAsOnTheHub) {
  const json hub =
      json::parse(R"({"architectures":["GptOssForCausalLM"],"model_type":"gpt_oss","attention_bias":true,
    "head_dim":64,"hidden_act":"silu","hidden_size":2880,"intermediate_size":2880,"num_attention_heads":64,
    "num_hidden_layers":4,"num_key_value_heads":8,"num_local_experts":32,"experts_per_token":4,
    "num_experts_per_tok":4,"rms_norm_eps":1e-5,"sliding_window":128,"swiglu_limit":7.0,"vocab_size":201088,
    "max_position_embeddings":131072,"rope_theta":150000,"tie_word_embeddings":false,
    "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"],
    "rope_scaling":{"rope_type":"yarn","factor":32.0,"original_max_position_embeddings":4096,"beta_fast":32.0,
                    "beta_slow":1.0,"truncate":false},
    "quantization_config":{"quant_method":"mxfp4","modules_to_not_convert":["model.layers.*.self_attn"]}})");
  json silent = hub;  // the class's rule in place of a list
  silent.erase("layer_types");
  for (const json& config : {hub, silent}) {
    const ModelConfig model = Good(config);
    EXPECT_THAT(Windows(model), ElementsAre(128, 0, 128, 0));
    EXPECT_EQ(model.activation, Activation::kClampedSwiglu);
    EXPECT_EQ(model.swiglu_limit, 7);
    EXPECT_EQ(model.swiglu_alpha, 1.702);
    EXPECT_TRUE(model.attention_qkv_bias && model.attention_out_bias);
    EXPECT_EQ(model.experts.num_experts, 32);
    EXPECT_EQ(model.experts.expert_size, 2880);
    EXPECT_TRUE(model.experts.renormalize);
    EXPECT_FALSE(model.rope.truncate);
    EXPECT_NEAR(model.rope.attention_factor, 0.1 * std::log(32) + 1, 1e-12);
    EXPECT_EQ(model.quantization.method, QuantizationConfig::Method::kMxfp4);
  }
  EXPECT_THAT(ErrorOf(With(hub, "rope_scaling", nullptr)), HasSubstr("rope_parameters: missing"));
  EXPECT_THAT(ErrorOf(With(hub, "swiglu_limit", 0)), HasSubstr("swiglu_limit: not above zero"));
}

}  // namespace
}  // namespace somnus
