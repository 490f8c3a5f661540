#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/checkpoint/writers.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

absl::Status Parse(const std::string& bytes, TensorTable* tensors) {
  return ReadSafetensors(*MappedFile::Borrow("m.safetensors", bytes), nullptr, tensors);
}

std::string ErrorOf(const std::string& bytes) {
  TensorTable tensors;
  const absl::Status status = Parse(bytes, &tensors);
  return status.ok() ? "no error" : status.ToString();
}

// A header with one tensor of the given fields over 16 bytes of data.
std::string OneTensor(const std::string& fields) {
  return SafetensorsFile("{\"t\":{" + fields + "}}", std::string(16, 'x'));
}

TEST(Safetensors, ReadsNamesShapesAndData) {
  const std::string bytes = SafetensorsOf({{"a", {2, 3}}, {"scalar", {}}, {"empty", {0, 5}}, {"b", {4}}});
  TensorTable tensors;
  ASSERT_TRUE(Parse(bytes, &tensors).ok());
  ASSERT_EQ(tensors.All().size(), 4u);
  const TensorInfo* b = tensors.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, std::vector<int64_t>{4});
  EXPECT_EQ(b->bytes, 16u);
  float first = 0;
  std::memcpy(&first, b->data, sizeof(first));
  EXPECT_EQ(first, 7.0f);
  EXPECT_EQ(tensors.Find("c"), nullptr);
}

TEST(Safetensors, MetadataPaddingAndOrderDoNotMatter) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"data_offsets":[4,8],"shape":[1],"dtype":"F32"},)"
      R"("a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]}}    )";
  TensorTable tensors;
  ASSERT_TRUE(Parse(SafetensorsFile(header, "01234567"), &tensors).ok());
  EXPECT_EQ(tensors.Find("a")->type, StorageType::kF16);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string bytes = SafetensorsOf({{"a", {2, 3}}, {"b", {4}}});
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string error = ErrorOf(bytes.substr(0, size));
    EXPECT_THAT(error, HasSubstr("INVALID_ARGUMENT: m.safetensors: ")) << size;
  }
  EXPECT_THAT(ErrorOf(bytes + "x"), HasSubstr("1 bytes follow the last tensor"));
}

TEST(Safetensors, NamesTensorAndReason) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("dtype":"F32","shape":[4],"data_offsets":[0,12])", "tensor t: F32 of shape [4] takes 16 bytes"},
      {R"("dtype":"F32","shape":[3],"data_offsets":[4,16])",
       "begins at byte 4, the one before ends at 0 (hole)"},
      {R"("dtype":"F32","shape":[5],"data_offsets":[0,20])", "tensor t: data ends at byte 20 of 16"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[0,16])", "tensor t: bad shape [-1]"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[16,0])", "are not a range"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[-16,0])", "are not a range"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16])", "bad shape"},
      {R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16])", "bad shape"},
      {R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16])", "too many numbers"},
      {R"("dtype":"F31","shape":[4],"data_offsets":[0,16])", "tensor t: unknown dtype F31"},
      {R"("dtype":"F32","shape":[4])", "is missing"},
      {R"("shape":[4],"data_offsets":[0,16])", "is missing"},
      {R"("dtype":"F32","data_offsets":[0,16])", "is missing"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[0])", "is missing"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[0,16,32])", "too many numbers"},
      {R"("dtype":"F32","shape":[4.0],"data_offsets":[0,16])", "expected an integer"},
      {R"("dtype":"F32","shape":"4","data_offsets":[0,16])", "expected '['"},
      {R"("dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1)", "unknown key x"},
      {R"("dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16])", "key dtype twice"},
      {R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,16])", "64 bits"},
  };
  for (const auto& [fields, reason] : cases) {
    const std::string error = ErrorOf(OneTensor(fields));
    EXPECT_THAT(error, HasSubstr(reason)) << fields;
    EXPECT_THAT(error, HasSubstr("m.safetensors")) << fields;
  }
}

TEST(Safetensors, RefusesOverlapsAndDuplicates) {
  const std::string entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data(12, 'x');
  EXPECT_THAT(ErrorOf(SafetensorsFile("{\"a\":" + entry + ",\"a\":" + entry + "}", data)),
              HasSubstr("tensor a is there more than once"));
  // Two names of one tensor; only one has a type that can be read.
  EXPECT_THAT(
      ErrorOf(SafetensorsFile("{\"model.norm.weight\":" + entry +
                                  R"(,"norm.weight":{"dtype":"I32","shape":[1],"data_offsets":[8,12]}})",
                              data)),
      HasSubstr("tensor model.norm.weight is there more than once"));
  EXPECT_THAT(ErrorOf(SafetensorsFile(
                  "{\"a\":" + entry + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", data)),
              HasSubstr("tensor b: data begins at byte 4, the one before ends at 8 (overlap)"));
}

TEST(Safetensors, LengthsOfTheHeaderAreChecked) {
  for (const uint64_t length :
       {uint64_t{9}, uint64_t{100'000'000}, uint64_t{100'000'001}, ~uint64_t{0}, ~uint64_t{7}}) {
    EXPECT_THAT(ErrorOf(Encode(length) + "{}      "), HasSubstr("m.safetensors: header of")) << length;
  }
  EXPECT_THAT(ErrorOf(SafetensorsFile("[]", "")), HasSubstr("header"));
  EXPECT_THAT(ErrorOf(SafetensorsFile("{} x", "")), HasSubstr("something follows"));
}

TEST(Safetensors, UnusableTypesAreErrorsOnlyWhereTheyAreNeeded) {
  const std::string header = R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  TensorTable tensors;
  ASSERT_TRUE(Parse(SafetensorsFile(header, std::string(12, 'x')), &tensors).ok());
  EXPECT_TRUE(tensors.Expect("w", {1}).ok());
  EXPECT_EQ(tensors.Expect("ids", {1}).ToString(),
            "UNIMPLEMENTED: m.safetensors: tensor ids has type I64, which is not supported");
  EXPECT_THAT(tensors.Expect("w", {2}).ToString(),
              HasSubstr("tensor w has shape [1], the configuration asks for [2]"));
  EXPECT_THAT(tensors.Expect("v", {2}).ToString(), HasSubstr("tensor v is missing"));
}

// Wrapped models have longer prefixes before the names, and models saved without a head shorter prefixes.
TEST(Safetensors, NamesAreThoseOfTheBareModel) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"model.lm_head.weight", "lm_head.weight"},
      {"_orig_mod.model.norm.weight", "model.norm.weight"},
      {"module.model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"base_model.model.model.embed_tokens.weight", "model.embed_tokens.weight"},
      {"decoder.project_in.weight", "model.decoder.project_in.weight"},
      {"vision_tower.layers.0.weight", "vision_tower.layers.0.weight"},
      {"model.visual.layers.0.weight", "model.visual.layers.0.weight"},
      {"mtp.layers.0.weight", "mtp.layers.0.weight"},
      {"model.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"},
  };
  for (const auto& [stored, canonical] : cases) {
    TensorTable tensors;
    ASSERT_TRUE(Parse(SafetensorsOf({{stored, {1}}}), &tensors).ok());
    EXPECT_NE(tensors.Find(canonical), nullptr) << stored;
  }
}

TEST(Safetensors, FlippedBitsNeverCrash) {
  const std::string good = SafetensorsOf({{"layer.weight", {2, 3}}, {"bias", {4}}});
  const size_t header = good.size() - 40;
  int refused = 0;
  for (size_t bit = 0; bit < header * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    refused += ErrorOf(bytes) != "no error";
  }
  EXPECT_GT(refused, static_cast<int>(header * 4));  // flips inside names are harmless
}

}  // namespace
}  // namespace somnus
