// LoRA adapters in PEFT's format: the forms that are read, and the forms that are refused by name.

#include "checkpoint/lora_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "checkpoint/lora_config.h"
#include "tests/checkpoint/lora_files.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kModel[] = "tests/data/tiny/llama-uneven";
constexpr int32_t kMaxRank = 4;

std::unique_ptr<Checkpoint> OpenModel(const std::string& path = kModel) {
  auto checkpoint = Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

class LoraAdapterTest : public testing::Test {
 protected:
  absl::Status OpenStatus() { return LoraAdapter::Open(directory_, base_->config(), kMaxRank).status(); }
  std::string config() const { return ReadFile(directory_ + "/adapter_config.json"); }
  void SetConfig(const std::string& text) { WriteFile(directory_ + "/adapter_config.json", text); }
  // The configuration with one text in the place of another.
  absl::Status OpenWith(const std::string& from, const std::string& to) {
    const std::string before = config();
    EXPECT_THAT(before, HasSubstr(from));
    SetConfig(absl::StrReplaceAll(before, {{from, to}}));
    const absl::Status status = OpenStatus();
    SetConfig(before);
    return status;
  }

  const std::unique_ptr<Checkpoint> base_ = OpenModel();
  const std::string directory_ = WriteLora(*base_, LoraRecipe());
};

TEST_F(LoraAdapterTest, ReadsRanksAndScales) {
  LoraRecipe recipe{.rank = 2, .alpha = 6, .targets = {"q_proj", "down_proj"}};
  recipe.rank_pattern["model.layers.1.self_attn.q_proj"] = 3;
  recipe.alpha_pattern["model.layers.1.self_attn.q_proj"] = 9;
  const auto adapter = LoraAdapter::Open(WriteLora(*base_, recipe), base_->config(), kMaxRank);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ((*adapter)->rank(), 3);
  const auto q0 = (*adapter)->Read(0, LoraTarget::kQuery), q1 = (*adapter)->Read(1, LoraTarget::kQuery);
  ASSERT_TRUE(q0.ok() && q1.ok());
  EXPECT_EQ(q0->rank, 2);
  EXPECT_EQ(q0->a.size(), 2u * 72);
  EXPECT_EQ(q0->b.size(), 2u * 72);
  EXPECT_EQ(q1->rank, 3);
  const auto k = (*adapter)->Read(0, LoraTarget::kKey);
  ASSERT_TRUE(k.ok());
  EXPECT_EQ(k->rank, 0) << "no target";

  // Three times the alpha is three times B; rslora divides by the root of the rank.
  LoraRecipe stabilized = recipe;
  stabilized.rank_stabilized = true;
  const auto other = LoraAdapter::Open(WriteLora(*base_, stabilized), base_->config(), kMaxRank);
  ASSERT_TRUE(other.ok()) << other.status();
  const auto scaled = (*other)->Read(0, LoraTarget::kQuery);
  ASSERT_TRUE(scaled.ok());
  EXPECT_NEAR(scaled->b[5], q0->b[5] * std::sqrt(2.0), 1e-6);
}

// Keys may have the prefixes that modules have within a wrapper, and a key with ^ is a whole name.
TEST_F(LoraAdapterTest, KeysNameModulesAsPeftDoes) {
  const auto scale = [&](const std::string& key) {
    const auto config = LoraConfig::Parse(R"({"peft_type":"LORA","r":2,"lora_alpha":2,"alpha_pattern":{")" +
                                          key + R"(":6}})");
    EXPECT_TRUE(config.ok()) << config.status();
    const LoraModuleName module = {.canonical = "model.layers.1.self_attn.q_proj",
                                   .saved = "model.language_model.layers.1.self_attn.q_proj"};
    return config->ScaleOf(module, 2).value();
  };
  for (const char* key :
       {"q_proj", "self_attn.q_proj", "layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
        "^model.layers.1.self_attn.q_proj", "model.language_model.layers.1.self_attn.q_proj",
        "^model.language_model.layers.1.self_attn.q_proj", "language_model.model.layers.1.self_attn.q_proj",
        "(q|k)_proj", R"(.*language_model.*\\.q_proj)", R"(layers\\.\\d+\\.self_attn\\.(?:q|v)_proj)",
        "._proj", R"(^model\\..*[0-3]\\..*q_proj)", R"((\\w)_pro(?=j)j)"})
    EXPECT_EQ(scale(key), 3) << key;
  for (const char* key : {"^q_proj", "_proj", "attn.q_proj", "layers.2.self_attn.q_proj", "k_proj",
                          "(k|v)_proj", R"(^(q|k)_proj)", "[a-z]_pro", R"(layers\\.[02]\\..*)", "Q_proj"})
    EXPECT_EQ(scale(key), 1) << key;
  const auto config =
      LoraConfig::Parse(R"({"r":2,"lora_alpha":2,"alpha_pattern":{"self_attn.q_proj":8,"q_proj":6,".*":4}})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->ScaleOf({.canonical = "model.layers.1.self_attn.q_proj"}, 2), 4)
      << "the first key counts";
}

TEST_F(LoraAdapterTest, DividesFusedMatricesAndBringsRowsIntoOrder) {
  const auto base = OpenModel("tests/data/variants/glm4");
  const auto adapter = LoraAdapter::Open(WriteLora(*base, LoraRecipe()), base->config(), kMaxRank);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto gate = (*adapter)->Read(0, LoraTarget::kGate), up = (*adapter)->Read(0, LoraTarget::kUp);
  ASSERT_TRUE(gate.ok() && up.ok());
  EXPECT_EQ(gate->a, up->a) << "of one matrix";
  EXPECT_NE(gate->b, up->b);
  EXPECT_EQ(up->b.size(), 2u * base->config().intermediate_size);
}

TEST_F(LoraAdapterTest, RefusesVariantsByKey) {
  ASSERT_EQ(OpenStatus(), absl::OkStatus());
  const struct {
    const char *from, *to, *key;
  } cases[] = {
      {"\"use_dora\":false", "\"use_dora\":true", "use_dora"},
      {"\"modules_to_save\":null", "\"modules_to_save\":[\"lm_head\"]", "modules_to_save"},
      {"\"bias\":\"none\"", "\"bias\":\"all\"", "bias"},
      {"\"LORA\"", "\"IA3\"", "peft_type"},
      {"\"r\":2", "\"init_lora_weights\":\"pissa_niter_4\",\"r\":2", "init_lora_weights"},
      {"\"r\":2", "\"init_lora_weights\":\"lora_ga\",\"r\":2", "init_lora_weights"},
      {"\"r\":2", "\"kasa_config\":{\"beta\":0.1},\"r\":2", "kasa_config"},
  };
  for (const auto& one : cases) {
    const absl::Status status = OpenWith(one.from, one.to);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << one.to;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("adapter_config.json"), HasSubstr(one.key)));
  }
}

TEST_F(LoraAdapterTest, RefusesContradictionsByName) {
  const struct {
    const char *from, *to, *name;
  } cases[] = {
      {"\"r\":2", "\"r\":3", "lora_A.weight has shape [2, "},
      {"\"r\":2", "\"r\":8", "--max-lora-rank, 4"},
      {"\"r\":2", "\"r\":0", "r: "},
      {"\"lora_alpha\":4", "\"lora_alpha\":\"x\"", "lora_alpha"},
      {"\"q_proj\"", "\"q_proj\",\"lm_head\"", "'lm_head'"},
      {"\"q_proj\",", "", "self_attn.q_proj.lora_A.weight is of a module that target_modules does not name"},
      {"\"rank_pattern\":{", "\"rank_pattern\":{\"q_(a|b\":4", "rank_pattern: the regular expression"},
      {"\"rank_pattern\":{", "\"rank_pattern\":{\"(([a-z_.0-9]+)+)+[!?]\":4", "takes too many steps"},
      {"{\"peft_type\"", "{,\"peft_type\"", "not valid JSON"},
  };
  for (const auto& one : cases) {
    const absl::Status status = OpenWith(one.from, one.to);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.to << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.name));
  }
  EXPECT_EQ(OpenWith("[", "[[").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LoraAdapterTest, RefusesTensorsByName) {
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const struct {
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
    absl::StatusCode code;
    const char* text;
  } cases[] = {
      {{{q + ".lora_A.weight", {2, 72}}},
       absl::StatusCode::kInvalidArgument,
       "no tensor model.layers.0.self_attn.q_proj.lora_B"},
      {{{q + ".lora_A.weight", {2, 71}}, {q + ".lora_B.weight", {72, 2}}},
       absl::StatusCode::kInvalidArgument,
       "has shape [2, 71], and this model needs [2, 72]"},
      {{{"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", {2, 72}}},
       absl::StatusCode::kInvalidArgument,
       "layers.9.self_attn.q_proj.lora_A.weight is of no linear layer"},
      {{{"base_model.model.lm_head.lora_A.weight", {2, 72}}},
       absl::StatusCode::kUnimplemented,
       "output matrix"},
      {{{"base_model.model.model.embed_tokens.lora_embedding_A", {2, 72}}},
       absl::StatusCode::kUnimplemented,
       "embedding"},
      {{{q + ".lora_magnitude_vector", {72}}}, absl::StatusCode::kUnimplemented, "DoRA"},
      {{{"base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight", {2, 72}}},
       absl::StatusCode::kUnimplemented,
       "experts"},
      {{{q + ".bias", {72}}}, absl::StatusCode::kUnimplemented, "biases"},
      {{}, absl::StatusCode::kInvalidArgument, "no tensor of an adapter"},
  };
  for (const auto& one : cases) {
    WriteFile(directory_ + "/adapter_model.safetensors", SafetensorsOf(one.tensors));
    const absl::Status status = OpenStatus();
    EXPECT_EQ(status.code(), one.code) << one.text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.text));
  }
}

TEST_F(LoraAdapterTest, MissingFiles) {
  EXPECT_EQ(LoraAdapter::Open("/nowhere", base_->config(), 4).status().code(), absl::StatusCode::kNotFound);
  const std::string pickled = MakeTempDir();
  WriteFile(pickled + "/adapter_config.json", config());
  EXPECT_EQ(LoraAdapter::Open(pickled, base_->config(), 4).status().code(), absl::StatusCode::kNotFound);
  WriteFile(pickled + "/adapter_model.bin", "");
  EXPECT_EQ(LoraAdapter::Open(pickled, base_->config(), 4).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace somnus
