#pragma once
// Small config.json files for tests of their reader.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/hf_config.h"

namespace somnus {

inline nlohmann::json Llama() {
  return nlohmann::json::parse(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":96,
    "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"rms_norm_eps":1e-5,
    "max_position_embeddings":512,"bos_token_id":1,"eos_token_id":2,"torch_dtype":"bfloat16"})");
}

inline nlohmann::json Opt() {
  return nlohmann::json::parse(
      R"({"architectures":["OPTForCausalLM"],"hidden_size":64,"ffn_dim":144,"num_hidden_layers":2,
    "num_attention_heads":2,"vocab_size":512,"max_position_embeddings":256,"word_embed_proj_dim":32,
    "do_layer_norm_before":false,"activation_function":"relu"})");
}

inline ModelConfig Good(const nlohmann::json& config, const std::string& generation = "") {
  const auto model = ParseHfConfig(config.dump(), generation);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.value_or(ModelConfig());
}

inline std::string ErrorOf(const nlohmann::json& config, const std::string& generation = "") {
  return ParseHfConfig(config.dump(), generation).status().ToString();
}

// `config` with `key` set to `value`.
inline nlohmann::json With(nlohmann::json config, const char* key, const nlohmann::json& value) {
  config[key] = value;
  return config;
}

}  // namespace somnus
