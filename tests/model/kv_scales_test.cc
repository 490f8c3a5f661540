#include "worker/model/kv_scales.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/model/scaled_checkpoint.h"

namespace somnus {
namespace {

using testing::HasSubstr;

constexpr char kLlama[] = "tests/data/tiny/llama-uneven";

ScaledCheckpoint Open(const std::string& path = kLlama) {
  auto base = Checkpoint::Open(path);
  EXPECT_TRUE(base.ok()) << base.status();
  return ScaledCheckpoint(*std::move(base));
}

KvScales Given(float k, float v) { return {k, v, true}; }

TEST(KvScalesTest, OneWhereTheCheckpointHasNone) {
  const auto scales = ReadKvScales(Open());
  ASSERT_TRUE(scales.ok()) << scales.status();
  EXPECT_EQ(*scales, std::vector<KvScales>(2));
  EXPECT_EQ((*scales)[0].k, 1);
  EXPECT_EQ((*scales)[0].v, 1);
}

TEST(KvScalesTest, KnowsAllNames) {
  const std::pair<const char*, const char*> names[] = {{"k_scale", "v_scale"},
                                                       {"attn.k_scale", "attn.v_scale"},
                                                       {"k_proj.k_scale", "v_proj.v_scale"},
                                                       {"k_proj.output_scale", "v_proj.output_scale"},
                                                       {"qkv_proj.k_scale", "qkv_proj.v_scale"},
                                                       {"k_cache.scale", "v_cache.scale"}};
  for (const auto& [k, v] : names) {
    ScaledCheckpoint checkpoint = Open();
    checkpoint.Add(absl::StrCat("model.layers.1.self_attn.", k), {}, 0.25f);
    checkpoint.Add(absl::StrCat("model.layers.1.self_attn.", v), {1, 1}, 3);
    const auto scales = ReadKvScales(checkpoint);
    ASSERT_TRUE(scales.ok()) << scales.status();
    EXPECT_EQ(*scales, (std::vector<KvScales>{{}, Given(0.25f, 3)})) << k;
  }
}

TEST(KvScalesTest, OneNumberForBoth) {
  for (const char* name : {"kv_scale", "k_scale"}) {
    ScaledCheckpoint checkpoint = Open();
    checkpoint.Add(absl::StrCat("model.layers.0.self_attn.", name), {}, 0.5f);
    const auto scales = ReadKvScales(checkpoint);
    ASSERT_TRUE(scales.ok()) << scales.status();
    EXPECT_EQ(*scales, (std::vector<KvScales>{Given(0.5f, 0.5f), {}})) << name;
  }
}

TEST(KvScalesTest, OptHasItsOwnPrefix) {
  ScaledCheckpoint checkpoint = Open("tests/data/tiny/opt");
  checkpoint.Add("model.decoder.layers.0.self_attn.k_scale", {}, 2);
  const auto scales = ReadKvScales(checkpoint);
  ASSERT_TRUE(scales.ok()) << scales.status();
  EXPECT_EQ((*scales)[0], Given(2, 2));
}

TEST(KvScalesTest, RefusesWhatIsNoScale) {
  const std::string name = "model.layers.1.self_attn.v_scale";
  const auto read = [&](std::vector<int64_t> shape, float value) {
    ScaledCheckpoint checkpoint = Open();
    checkpoint.AddAll(1, 1);
    checkpoint.Add(name, std::move(shape), value);
    return ReadKvScales(checkpoint).status();
  };
  for (const float value : {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY, 1e-44f, 3e38f}) {
    const absl::Status status = read({}, value);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << value;
    EXPECT_THAT(status.message(), HasSubstr("scales.safetensors: tensor " + name)) << value;
    EXPECT_THAT(status.message(), HasSubstr("positive")) << value;
  }
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3}, {1, 3}, {0}}) {
    const absl::Status status = read(shape, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("scales.safetensors: tensor " + name));
    EXPECT_THAT(status.message(), HasSubstr("one number"));
  }
  ScaledCheckpoint checkpoint = Open();
  checkpoint.Add(name, {}, 1);
  EXPECT_THAT(ReadKvScales(checkpoint).status().message(), HasSubstr("without k_scale"));
}

}  // namespace
}  // namespace somnus
