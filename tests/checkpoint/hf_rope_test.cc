// Rotary embedding in config.json.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "tests/checkpoint/hf_configs.h"

namespace somnus {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(HfRope, RopeInBothSpellings) {
  const json scaling =
      json::parse(R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
    "original_max_position_embeddings":8192})");
  const ModelConfig old = Good(With(With(Llama(), "rope_scaling", scaling), "rope_theta", 500000.0));
  json parameters = scaling;
  parameters["rope_theta"] = 500000.0;
  const ModelConfig current = Good(With(Llama(), "rope_parameters", parameters));
  for (const ModelConfig& model : {old, current}) {
    EXPECT_EQ(model.rope.type, RopeConfig::Type::kLlama3);
    EXPECT_EQ(model.rope.theta, 500000.0);
    EXPECT_EQ(model.rope.factor, 8.0);
    EXPECT_EQ(model.rope.original_max_position_embeddings, 8192);
  }
  const ModelConfig linear =
      Good(With(Llama(), "rope_scaling", json::parse(R"({"type":"linear","factor":2})")));
  EXPECT_EQ(linear.rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(linear.rope.factor, 2.0);
  const ModelConfig dynamic =
      Good(With(Llama(), "rope_scaling", json::parse(R"({"type":"dynamic","factor":2})")));
  EXPECT_EQ(dynamic.rope.type, RopeConfig::Type::kDefault);
  EXPECT_EQ(dynamic.rope.factor, 1.0);
}

TEST(HfRope, WhichRopeGoesBefore) {
  const json llama3 =
      json::parse(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4})");
  json config = With(Llama(), "rope_parameters", llama3);
  config["max_position_embeddings"] = 1024;
  EXPECT_EQ(Good(config).rope.original_max_position_embeddings, 1024);
  config["rope_parameters"]["original_max_position_embeddings"] = 512;
  EXPECT_EQ(Good(config).rope.original_max_position_embeddings, 512);
  config["original_max_position_embeddings"] = 256;
  EXPECT_EQ(Good(config).rope.original_max_position_embeddings, 256);
  config["rope_scaling"] = nullptr;
  config["rope_theta"] = 7e4;
  EXPECT_EQ(Good(config).rope.theta, 7e4);
  config["rope_parameters"]["rope_theta"] = 5e4;
  EXPECT_EQ(Good(config).rope.theta, 5e4);
  config["rope_scaling"] = json::parse(R"({"type":"linear","factor":3})");
  EXPECT_EQ(Good(config).rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(Good(config).rope.theta, 7e4);
}

// YaRN's fields mean the same as in transformers, by which the models of tests/data/variants are made.
TEST(HfRope, Yarn) {
  const auto with = [](const char* key, const char* rope) { return With(Llama(), key, json::parse(rope)); };
  const char* plain =
      R"({"rope_type":"yarn","factor":4.0,"rope_theta":1e6,"original_max_position_embeddings":512})";
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const ModelConfig model = Good(with(key, plain));
    EXPECT_EQ(model.rope.type, RopeConfig::Type::kYarn);
    EXPECT_EQ(model.rope.theta, 1e6);
    EXPECT_EQ(model.rope.factor, 4.0);
    EXPECT_EQ(model.rope.original_max_position_embeddings, 512);
    EXPECT_EQ(std::tie(model.rope.beta_fast, model.rope.beta_slow, model.rope.truncate),
              std::make_tuple(32.0, 1.0, true));
    EXPECT_NEAR(model.rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
    // The file says 512, the length before YaRN was added.
    EXPECT_EQ(model.max_position_embeddings, 2048);
  }
  const RopeConfig all = Good(with("rope_scaling", R"({"type":"yarn","factor":8,"beta_fast":16,"beta_slow":2,
    "mscale":1.0,"mscale_all_dim":0.5,"truncate":false})"))
                             .rope;
  EXPECT_EQ(std::tie(all.beta_fast, all.beta_slow, all.truncate), std::make_tuple(16.0, 2.0, false));
  EXPECT_NEAR(all.attention_factor, (0.1 * std::log(8.0) + 1) / (0.05 * std::log(8.0) + 1), 1e-12);
  EXPECT_EQ(all.original_max_position_embeddings, 512);
  // 0 and null count as not given; without a factor the ratio of the two context lengths is the factor.
  const RopeConfig none = Good(with("rope_scaling", R"({"type":"yarn","factor":null,"beta_fast":0,"mscale":0,
    "mscale_all_dim":1,"attention_factor":null,"truncate":null,"original_max_position_embeddings":128})"))
                              .rope;
  EXPECT_EQ(std::tie(none.factor, none.beta_fast, none.truncate), std::make_tuple(4.0, 32.0, false));
  EXPECT_NEAR(none.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  EXPECT_EQ(Good(with("rope_scaling", R"({"type":"yarn","factor":4,"attention_factor":1.5})"))
                .rope.attention_factor,
            1.5);
  for (const auto& [rope, key] : std::vector<std::pair<const char*, const char*>>{
           {R"({"type":"yarn"})", "factor: missing"},
           {R"({"type":"yarn","factor":-1})", "factor: not above zero"},
           {R"({"type":"yarn","factor":2,"beta_slow":-1})", "beta_slow: below zero"},
           {R"({"type":"yarn","factor":2,"attention_factor":0})", "attention_factor: not above zero"},
           {R"({"type":"yarn","factor":2,"truncate":"no"})", "truncate: not true or false"},
           {R"({"type":"yarn","factor":2,"original_max_position_embeddings":0})",
            "original_max_position_embeddings"}}) {
    EXPECT_THAT(ErrorOf(with("rope_scaling", rope)), HasSubstr(key)) << rope;
  }
}

}  // namespace
}  // namespace somnus
