#include "checkpoint/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/family.h"
#include "tests/checkpoint/hf_configs.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HfConfig, Llama) {
  const ModelConfig model = Good(Llama());
  EXPECT_STREQ(model.family->model_type, "llama");
  EXPECT_EQ(model.head_dim, 16);
  EXPECT_EQ(model.num_kv_heads, 2);
  EXPECT_EQ(model.rope.type, RopeConfig::Type::kDefault);
  EXPECT_EQ(model.rope.theta, 10000.0);
  EXPECT_FALSE(model.tie_word_embeddings);
  EXPECT_FALSE(model.attention_qkv_bias || model.attention_out_bias || model.mlp_bias ||
               model.family->qk_norm);
  EXPECT_EQ(model.stored_type, StorageType::kBF16);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(2));
  EXPECT_FALSE(model.generation.temperature.has_value());
}

TEST(HfConfig, OptionsOfLlama) {
  json config = Llama();
  config.update(
      json::parse(R"({"head_dim":24,"attention_bias":true,"mlp_bias":true,"tie_word_embeddings":true,
    "num_key_value_heads":null,"dtype":"float16","eos_token_id":[2,7],"max_position_embeddings":131072.0})"));
  const ModelConfig model = Good(config);
  EXPECT_EQ(model.head_dim, 24);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_TRUE(model.attention_qkv_bias && model.attention_out_bias && model.mlp_bias &&
              model.tie_word_embeddings);
  EXPECT_EQ(model.stored_type, StorageType::kF16);
  EXPECT_EQ(model.max_position_embeddings, 131072);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(2, 7));
}

TEST(HfConfig, Matryoshka) {
  EXPECT_FALSE(Good(Llama()).is_matryoshka);
  const ModelConfig any = Good(With(Llama(), "is_matryoshka", true));
  EXPECT_TRUE(any.is_matryoshka);
  EXPECT_TRUE(any.matryoshka_dimensions.empty());
  const ModelConfig listed = Good(With(Llama(), "matryoshka_dimensions", {32, 64}));
  EXPECT_TRUE(listed.is_matryoshka);
  EXPECT_THAT(listed.matryoshka_dimensions, ElementsAre(32, 64));
}

TEST(HfConfig, BiasesOfQwen) {
  ModelConfig model = Good(With(Llama(), "architectures", {"Qwen2ForCausalLM"}));
  EXPECT_STREQ(model.family->model_type, "qwen2");
  EXPECT_TRUE(model.attention_qkv_bias);
  EXPECT_FALSE(model.attention_out_bias);
  model = Good(With(With(Llama(), "architectures", {"Qwen3ForCausalLM"}), "attention_bias", true));
  EXPECT_STREQ(model.family->model_type, "qwen3");
  EXPECT_TRUE(model.family->qk_norm && model.attention_qkv_bias && model.attention_out_bias);
  EXPECT_FALSE(model.mlp_bias);
}

TEST(HfConfig, Opt) {
  const ModelConfig model = Good(Opt());
  EXPECT_STREQ(model.family->model_type, "opt");
  EXPECT_EQ(model.embedding_dim, 32);
  EXPECT_FALSE(model.norm_before || model.final_norm);
  EXPECT_EQ(model.family->position_offset, 2);
  EXPECT_EQ(model.activation, Activation::kRelu);
  EXPECT_EQ(model.rope.type, RopeConfig::Type::kNone);
  EXPECT_TRUE(model.tie_word_embeddings && model.attention_qkv_bias && model.attention_out_bias &&
              model.mlp_bias);
  EXPECT_TRUE(Good(With(Opt(), "do_layer_norm_before", true)).final_norm);
  const ModelConfig bare = Good(With(Opt(), "enable_bias", false));
  EXPECT_FALSE(bare.attention_qkv_bias || bare.attention_out_bias || bare.mlp_bias);
  EXPECT_THAT(ErrorOf(With(Opt(), "num_attention_heads", 5)),
              HasSubstr("num_attention_heads: does not divide"));
}

// The defaults of the configuration classes in `transformers`; null is not the same as missing.
TEST(HfConfig, MissingKeysHaveTheFamilysDefaults) {
  auto without = [](json config, const std::vector<const char*>& keys) {
    for (const char* key : keys) config.erase(key);
    return config;
  };
  json llama =
      without(Llama(), {"num_key_value_heads", "bos_token_id", "eos_token_id", "max_position_embeddings",
                        "rms_norm_eps", "hidden_act", "torch_dtype", "tie_word_embeddings"});
  ModelConfig model = Good(llama);
  EXPECT_EQ(model.num_kv_heads, 4);
  EXPECT_EQ(model.bos_token_id, 1);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(model.max_position_embeddings, 2048);
  EXPECT_EQ(model.norm_eps, 1e-6);
  EXPECT_FALSE(model.stored_type_given);
  EXPECT_THAT(Good(With(llama, "eos_token_id", nullptr)).eos_token_ids, ElementsAre());
  json qwen3 = With(llama, "architectures", {"Qwen3ForCausalLM"});
  qwen3["num_attention_heads"] = 32;
  model = Good(qwen3);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.num_kv_heads, 32);
  EXPECT_THAT(model.eos_token_ids, ElementsAre());
  EXPECT_EQ(Good(With(qwen3, "head_dim", nullptr)).head_dim, 2);
  json mistral = With(llama, "architectures", {"MistralForCausalLM"});
  mistral["num_attention_heads"] = 16;
  EXPECT_EQ(Good(mistral).AttentionOf(1).window, 4096);
  EXPECT_EQ(Good(With(mistral, "sliding_window", nullptr)).num_kv_heads, 8);
}

// A wrapper's text_config, as written by transformers 4, lacks the sizes that equal the class's: here Mistral
// Small 3.1, whose number of heads is the class's, and LLaVA 1.5.
TEST(HfConfig, TextConfigsLackTheSizesOfTheClass) {
  json text =
      json::parse(R"({"model_type":"mistral","head_dim":128,"hidden_size":5120,"intermediate_size":32768,
    "num_hidden_layers":40,"vocab_size":131072,"sliding_window":null,"rope_theta":1e9,"rms_norm_eps":1e-5})");
  const auto wrapped = [](const json& part) {
    return Good({{"architectures", {"SomeForConditionalGeneration"}}, {"text_config", part}});
  };
  const ModelConfig mistral = wrapped(text);
  EXPECT_EQ(mistral.num_heads, 32);
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  text = json::parse(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":32064,
    "max_position_embeddings":4096,"rms_norm_eps":1e-5,"torch_dtype":"float16"})");
  const ModelConfig llama = wrapped(text);
  EXPECT_EQ(llama.hidden_size, 4096);
  EXPECT_EQ(llama.intermediate_size, 11008);
  EXPECT_EQ(llama.num_layers, 32);
  EXPECT_EQ(llama.head_dim, 128);
}

TEST(HfConfig, TheFamilyByArchitectureOrByModelType) {
  json config = Llama();
  EXPECT_STREQ(Good(With(config, "architectures", {"LlamaModel"})).family->model_type, "llama");
  config.erase("architectures");
  EXPECT_THAT(ErrorOf(config), HasSubstr("INVALID_ARGUMENT: config.json: architectures: missing"));
  EXPECT_STREQ(Good(With(config, "model_type", "qwen2")).family->model_type, "qwen2");
  const json kimi = With(With(With(config, "model_type", "kimi_k2"), "n_group", 1), "topk_group", 1);
  EXPECT_STREQ(Good(kimi).family->model_type, "deepseek_v3");
  EXPECT_THAT(ErrorOf(With(config, "model_type", "gpt2")),
              HasSubstr("UNIMPLEMENTED: config.json: model_type: gpt2 is not supported"));
  EXPECT_THAT(ErrorOf(With(config, "model_type", 7)), HasSubstr("model_type: not a string"));
}

TEST(HfConfig, RefusesOtherRopes) {
  auto scaled = [](const char* text) { return With(Llama(), "rope_scaling", json::parse(text)); };
  EXPECT_THAT(ErrorOf(scaled(R"({"type":"longrope","factor":4})")),
              HasSubstr("rope_scaling.short_factor: not a list of 8 numbers"));
  EXPECT_THAT(ErrorOf(scaled(R"({"type":"spiral","factor":4})")), HasSubstr("rope_scaling.type: spiral"));
  EXPECT_THAT(ErrorOf(scaled(R"({"rope_type":"llama3","factor":8})")), HasSubstr("low_freq_factor: missing"));
  EXPECT_THAT(ErrorOf(scaled(R"({"rope_type":"linear"})")), HasSubstr("rope_scaling.factor: missing"));
  EXPECT_THAT(ErrorOf(scaled(R"({"rope_type":"linear","factor":0})")),
              HasSubstr("rope_scaling.factor: not above zero"));
  EXPECT_THAT(ErrorOf(scaled("\"linear\"")),
              HasSubstr("INVALID_ARGUMENT: config.json: rope_scaling: not an object"));
  EXPECT_THAT(ErrorOf(scaled(R"({"full_attention":{"rope_type":"default"}})")),
              HasSubstr("rope_scaling.full_attention"));
  EXPECT_THAT(ErrorOf(With(Llama(), "partial_rotary_factor", 0.5)), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_theta", -1)), HasSubstr("rope_theta: not above zero"));
}

TEST(HfConfig, SlidingWindows) {
  const json mistral = With(Llama(), "architectures", {"MistralForCausalLM"});
  EXPECT_EQ(ErrorOf(With(mistral, "sliding_window", nullptr)), "OK");
  EXPECT_EQ(ErrorOf(With(mistral, "sliding_window", 512)), "OK");  // never narrower than the context
  const auto windows = [](const json& config) {
    const ModelConfig model = Good(config);
    return std::vector<int32_t>{model.AttentionOf(0).window, model.AttentionOf(1).window};
  };
  EXPECT_THAT(windows(With(mistral, "sliding_window", 512)), ElementsAre(0, 0));
  EXPECT_THAT(windows(With(mistral, "sliding_window", 128)), ElementsAre(128, 128));
  const json qwen = With(With(Llama(), "architectures", {"Qwen2ForCausalLM"}), "sliding_window", 128);
  EXPECT_EQ(ErrorOf(qwen), "OK");
  const json switched = With(qwen, "use_sliding_window", true);
  EXPECT_THAT(windows(With(switched, "max_window_layers", 1)), ElementsAre(0, 128));
  EXPECT_THAT(windows(With(switched, "max_window_layers", 2)), ElementsAre(0, 0));
  const json full = {"full_attention", "full_attention"}, mixed = {"sliding_attention", "full_attention"};
  EXPECT_THAT(windows(With(switched, "layer_types", full)), ElementsAre(0, 0));
  EXPECT_THAT(windows(With(switched, "layer_types", mixed)), ElementsAre(128, 0));
  EXPECT_THAT(ErrorOf(With(switched, "layer_types", {"full_attention"})),
              HasSubstr("layer_types: shorter than num_hidden_layers"));
  EXPECT_EQ(ErrorOf(With(Llama(), "sliding_window", 128)), "OK");  // Llama ignores the key
  EXPECT_THAT(ErrorOf(With(qwen, "layer_types", {"full_attention", "sliding_attention"})),
              HasSubstr("layer_types"));
}

TEST(HfConfig, OfSeveralArchitecturesTheFirstKnownCounts) {
  const auto type = [](const json& names) {
    return std::string(Good(With(Llama(), "architectures", names)).family->model_type);
  };
  EXPECT_EQ(type({"MyLlama", "LlamaForCausalLM"}), "llama");
  EXPECT_EQ(type({"Qwen2ForCausalLM", "LlamaForCausalLM"}), "qwen2");
  EXPECT_EQ(type({"LlamaForCausalLM", "LlamaForCausalLM"}), "llama");
  EXPECT_THAT(ErrorOf(With(Llama(), "architectures", {"MyLlama", "MambaForCausalLM"})),
              HasSubstr("architectures: MyLlama, MambaForCausalLM is not supported"));
  // An empty list of architectures is like no key.
  json config = With(Llama(), "architectures", json::array());
  config["model_type"] = "llama";
  EXPECT_EQ(ErrorOf(config), "OK");
}

// Multimodal models keep the configuration of the text part inside.
TEST(HfConfig, TheTextPartOfAWrapper) {
  json text = Llama();
  text.erase("eos_token_id");
  text.erase("torch_dtype");
  json config = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                 {"text_config", text},
                 {"vision_config", {{"hidden_size", 8}}},
                 {"eos_token_id", {5, 6}},
                 {"dtype", "float16"}};
  const ModelConfig model = Good(config);
  EXPECT_STREQ(model.family->model_type, "llama");
  EXPECT_EQ(model.hidden_size, 64);
  EXPECT_THAT(model.eos_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(model.stored_type, StorageType::kF16);
  config["text_config"]["eos_token_id"] = 7;
  EXPECT_THAT(Good(config).eos_token_ids, ElementsAre(7));
  config["text_config"]["architectures"] = {"MambaForCausalLM"};
  EXPECT_THAT(ErrorOf(config), HasSubstr("architectures: Mistral3ForConditionalGeneration is not supported"));
  // The text_config of a supported architecture is not read.
  EXPECT_EQ(Good(With(Llama(), "text_config", {{"hidden_size", 8}})).hidden_size, 64);
}

TEST(HfConfig, AnEmptyQuantizationIsNone) {
  for (const char* nothing :
       {"{}", "null", R"({"quant_method":null})", R"({"quant_method":null,"bits":null})"}) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      EXPECT_EQ(Good(With(Llama(), key, json::parse(nothing))).quantization, QuantizationConfig()) << nothing;
    }
  }
  // An empty quantization_config does not hide compression_config.
  json config = With(Llama(), "quantization_config", json::object());
  config["compression_config"] = json::parse(R"({"quant_method":"fp8"})");
  EXPECT_EQ(Good(config).quantization.method, QuantizationConfig::Method::kFp8);
}

TEST(HfConfig, MayBeginWithAByteOrderMark) {
  EXPECT_TRUE(ParseHfConfig("\xEF\xBB\xBF" + Llama().dump(), "").ok());
  EXPECT_THAT(ParseHfConfig("\xEF\xBB" + Llama().dump(), "").status().ToString(),
              HasSubstr("not valid JSON"));
}

TEST(HfConfig, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ErrorOf(With(Llama(), "architectures", {"MambaForCausalLM"})),
              HasSubstr("UNIMPLEMENTED: config.json: architectures: MambaForCausalLM is not supported"));
  EXPECT_THAT(ErrorOf(With(Llama(), "quantization_config", {{"quant_method", "gptq"}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(ErrorOf(With(Llama(), "hidden_act", "gelu")),
              HasSubstr("UNIMPLEMENTED: config.json: hidden_act: gelu"));
}

// docs/execution.md names these; three of the classes are wrappers of a text model.
TEST(HfConfig, RefusesFamiliesThatAreNotThereYet) {
  const auto error_of = [](const char* class_name, const char* type) {
    json config = With(Llama(), "model_type", type);
    if (absl::EndsWith(class_name, "ForConditionalGeneration")) {
      config.erase("architectures");
      config = {{"model_type", "some"}, {"text_config", config}};
    }
    return ErrorOf(With(config, "architectures", {class_name}));
  };
  for (const auto& [class_name, type] : {std::pair{"Gemma4ForCausalLM", "gemma4_text"},
                                         {"Gemma4ForConditionalGeneration", "gemma4_text"},
                                         {"Qwen3NextForCausalLM", "qwen3_next"},
                                         {"Qwen3_5ForConditionalGeneration", "qwen3_5_text"},
                                         {"Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text"},
                                         {"Lfm2ForCausalLM", "lfm2"}}) {
    const std::string line = absl::StrCat("config.json: architectures: ", class_name, " is not supported");
    EXPECT_EQ(error_of(class_name, type), "UNIMPLEMENTED: " + line);
  }
}

TEST(HfConfig, Quantization) {
  using Method = QuantizationConfig::Method;
  EXPECT_EQ(Good(Llama()).quantization, QuantizationConfig());
  const auto of = [](const char* text) {
    return Good(With(Llama(), "quantization_config", json::parse(text))).quantization;
  };
  QuantizationConfig q =
      of(R"({"quant_method":"gptq","bits":4,"group_size":128,"sym":true,"desc_act":true})");
  EXPECT_EQ(q.method, Method::kGptq);
  EXPECT_EQ(q.bits, 4);
  EXPECT_EQ(q.group_size, 128);
  EXPECT_TRUE(q.symmetric && q.zeros_less_1 && !q.float8);
  EXPECT_FALSE(
      of(R"({"quant_method":"gptq","bits":8,"group_size":-1,"checkpoint_format":"gptq_v2"})").zeros_less_1);
  q = of(R"({"quant_method":"awq","w_bit":4,"q_group_size":64,"version":"GEMM","zero_point":true})");
  EXPECT_EQ(q.method, Method::kAwq);
  EXPECT_EQ(q.group_size, 64);
  q = of(R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,64]})");
  EXPECT_EQ(q.method, Method::kFp8);
  EXPECT_TRUE(q.float8);
  EXPECT_EQ(q.block_rows, 128);
  EXPECT_EQ(q.group_size, 64);
  EXPECT_TRUE(of(R"({"quant_method":"fbgemm_fp8","activation_scale_ub":1200.0})").float8);
  q = of(
      R"({"quant_method":"compressed-tensors","format":"pack-quantized","transform_config":{},"config_groups":{"group_0":{
      "weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":false}}}})");
  EXPECT_EQ(q.method, Method::kCompressedTensors);
  EXPECT_EQ(q.bits, 4);
  EXPECT_EQ(q.group_size, 32);
  EXPECT_FALSE(q.symmetric);
}

TEST(HfConfig, QuantizationThatIsNotReadNamesTheKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"quant_method":"bitsandbytes","load_in_4bit":true})",
       "UNIMPLEMENTED: config.json: quantization_config.quant_method: bitsandbytes is not supported; gptq, "
       "awq"},
      {R"({"quant_method":"hqq"})", "quantization_config.quant_method: hqq"},
      {R"({"bits":4})", "INVALID_ARGUMENT: config.json: quantization_config.quant_method: missing"},
      {R"({"quant_method":4})", "quantization_config.quant_method: not a string"},
      {R"([])", "quantization_config: not an object"},
      {R"({"quant_method":"gptq","bits":3})", "quantization_config.bits: 3 bits"},
      {R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})", "checkpoint_format: marlin"},
      {R"({"quant_method":"gptq","bits":4,"dynamic":{"+:.*":{"bits":8}}})", "quantization_config.dynamic"},
      {R"({"quant_method":"awq","bits":4,"version":"gemv"})", "quantization_config.version: gemv"},
      {R"({"quant_method":"awq","bits":4,"zero_point":false})", "quantization_config.zero_point"},
      {R"({"quant_method":"fp8","fmt":"e5m2"})", "quantization_config.fmt: e5m2"},
      {R"({"quant_method":"fp8","weight_block_size":[128,0]})", "quantization_config.weight_block_size"},
      {R"({"quant_method":"compressed-tensors","format":"marlin-24"})",
       "quantization_config.format: marlin-24"},
      {R"({"quant_method":"compressed-tensors","transform_config":{"config_groups":{"R1":{"type":"hadamard"}}}})",
       "quantization_config.transform_config: a rotation"},
      {R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"num_bits":4,"type":"float"}}}})",
       "quantization_config.config_groups.a.weights.num_bits"},
  };
  for (const auto& [text, error] : cases)
    EXPECT_THAT(ErrorOf(With(Llama(), "quantization_config", json::parse(text))), HasSubstr(error));
}

TEST(HfConfig, BadValuesAreNamed) {
  const std::pair<const char*, json> cases[] = {{"hidden_size", 0},
                                                {"hidden_size", -64},
                                                {"hidden_size", "64"},
                                                {"hidden_size", 64.5},
                                                {"hidden_size", 1e300},
                                                {"hidden_size", nullptr},
                                                {"num_hidden_layers", 0},
                                                {"num_attention_heads", 0},
                                                {"num_attention_heads", 7},
                                                {"num_key_value_heads", 3},
                                                {"num_key_value_heads", 0},
                                                {"vocab_size", 5000000000},
                                                {"vocab_size", kMaxVocabSize + 1},
                                                {"head_dim", 0},
                                                {"head_dim", 15},
                                                {"rms_norm_eps", "small"},
                                                {"tie_word_embeddings", 1},
                                                {"eos_token_id", "two"},
                                                {"eos_token_id", {2, "x"}},
                                                {"architectures", "Llama"},
                                                {"architectures", {1, 2}},
                                                {"hidden_act", 3},
                                                {"max_position_embeddings", 0}};
  for (const auto& [key, value] : cases) {
    const std::string error = ErrorOf(With(Llama(), key, value));
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: config.json: ")) << key << value;
    EXPECT_THAT(error, HasSubstr(key)) << key << value;
  }
  EXPECT_THAT(ErrorOf(With(Llama(), "num_hidden_layers", 1000000)), HasSubstr("INVALID_ARGUMENT"));
}

TEST(HfConfig, GenerationConfigHasTheLastWord) {
  const ModelConfig model =
      Good(Llama(), R"({"eos_token_id":[5,6],"pad_token_id":9,"temperature":0.6,"top_p":0.9,
    "top_k":40,"repetition_penalty":1.1,"do_sample":true})");
  EXPECT_THAT(model.eos_token_ids, ElementsAre(5, 6));
  EXPECT_EQ(model.bos_token_id, 1);
  EXPECT_EQ(model.pad_token_id, 9);
  EXPECT_EQ(model.generation.temperature, 0.6);
  EXPECT_EQ(model.generation.top_k, 40);
  EXPECT_FALSE(model.generation.min_p.has_value());
  // A null counts as not given.
  EXPECT_THAT(Good(Llama(), R"({"eos_token_id":null})").eos_token_ids, ElementsAre(2));
  EXPECT_THAT(Good(Llama(), R"({"eos_token_id":7})").eos_token_ids, ElementsAre(7));
  EXPECT_THAT(Good(With(Llama(), "eos_token_id", {2, 9}), R"({})").eos_token_ids, ElementsAre(2, 9));
  EXPECT_THAT(ErrorOf(Llama(), R"({"top_k":"many"})"),
              HasSubstr("INVALID_ARGUMENT: generation_config.json: top_k"));
  EXPECT_THAT(ErrorOf(Llama(), "{"), HasSubstr("INVALID_ARGUMENT: generation_config.json: not valid JSON"));
}

TEST(HfConfig, DamagedJson) {
  const std::string good = Llama().dump();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_THAT(ParseHfConfig(good.substr(0, size), "").status().ToString(),
                HasSubstr("config.json: not valid JSON"));
  }
  EXPECT_THAT(ParseHfConfig("[]", "").status().ToString(), HasSubstr("config.json: not a JSON object"));
}

}  // namespace
}  // namespace somnus
