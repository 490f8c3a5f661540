// --quantization: its names, what workers are told, and what a checkpoint has to have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/flags/flags.h"
#include "coordinator/flags/quantization.h"

namespace somnus {
namespace {

using Method = QuantizationConfig::Method;
using ::testing::HasSubstr;

Quantization Parsed(const std::string& name) {
  const absl::StatusOr<Flags> flags = ParseFlags({"m", "--quantization=" + name});
  EXPECT_TRUE(flags.ok()) << flags.status();
  return flags.ok() ? flags->quantization : Quantization::kNone;
}

absl::Status Check(const std::string& name, Method method, bool float8 = false) {
  ModelConfig config{.name = "tiny"};
  config.quantization.method = method;
  config.quantization.float8 = float8;
  return CheckQuantization(Parsed(name), config);
}

TEST(QuantizationFlag, NamesAreThoseOfVllm) {
  EXPECT_EQ(ParseFlags({"m"})->quantization, Quantization::kNone);
  EXPECT_EQ(Parsed("int8"), Quantization::kInt8);
  EXPECT_EQ(Parsed("fp8"), Quantization::kFp8);
  EXPECT_EQ(Parsed("awq_marlin"), Parsed("awq"));
  EXPECT_EQ(Parsed("gptq_marlin"), Parsed("gptq"));
  const auto unknown = ParseFlags({"m", "--quantization=marlin"});
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(unknown.status().message()),
      HasSubstr("--quantization: 'marlin' is not one of none, int8, int4, fp8, awq, awq_marlin, gptq, "
                "gptq_marlin, compressed-tensors, gguf"));
}

TEST(QuantizationFlag, WorkersAreToldWhatWeightsBecome) {
  EXPECT_EQ(WeightQuantizationOf(Parsed("int4")), v1::WEIGHT_QUANTIZATION_INT4);
  EXPECT_EQ(WeightQuantizationOf(Parsed("fp8")), v1::WEIGHT_QUANTIZATION_FP8);
  for (const char* name : {"none", "awq", "gptq", "compressed-tensors", "gguf"})
    EXPECT_EQ(WeightQuantizationOf(Parsed(name)), v1::WEIGHT_QUANTIZATION_NONE) << name;
}

TEST(QuantizationFlag, FilesAreComputedAsTheyAreStoredUnlessTheyAreQuantizedAnew) {
  const auto dequantizes = [](std::vector<std::string> args) {
    args.insert(args.begin(), "m");
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    EXPECT_TRUE(flags.ok()) << flags.status();
    return flags.ok() && DequantizesAtLoad(flags->dequantize, flags->quantization);
  };
  EXPECT_FALSE(dequantizes({}));
  EXPECT_TRUE(dequantizes({"--dequantize"}));
  EXPECT_FALSE(dequantizes({"--no-dequantize"}));
  for (const char* made : {"int8", "int4", "fp8"}) {
    EXPECT_TRUE(dequantizes({absl::StrCat("--quantization=", made)})) << made;
    EXPECT_FALSE(dequantizes({absl::StrCat("--quantization=", made), "--no-dequantize"})) << made;
  }
  for (const char* there : {"none", "awq", "gptq", "compressed-tensors", "gguf"})
    EXPECT_FALSE(dequantizes({absl::StrCat("--quantization=", there)})) << there;
}

TEST(QuantizationFlag, AMethodIsThatOfTheCheckpoint) {
  const struct {
    const char* name;
    Method method;
  } methods[] = {{"awq", Method::kAwq},
                 {"gptq", Method::kGptq},
                 {"compressed-tensors", Method::kCompressedTensors},
                 {"gguf", Method::kGguf}};
  for (const auto& [name, same] : methods) {
    EXPECT_EQ(Check(name, Method::kNone).code(), absl::StatusCode::kInvalidArgument);
    for (const auto& [other, method] : methods) {
      EXPECT_EQ(Check(name, method).ok(), method == same) << name << " of " << other;
      EXPECT_EQ(Check("int8", method), absl::OkStatus()) << "which quantizes anew";
    }
  }
}

TEST(QuantizationFlag, Fp8IsMadeOrThere) {
  EXPECT_EQ(Check("fp8", Method::kNone), absl::OkStatus());
  EXPECT_EQ(Check("fp8", Method::kGguf), absl::OkStatus());
  EXPECT_EQ(Check("fp8", Method::kFp8, true), absl::OkStatus());
  EXPECT_EQ(Check("fp8", Method::kCompressedTensors, true), absl::OkStatus());
  EXPECT_FALSE(Check("fp8", Method::kCompressedTensors).ok());
}

TEST(QuantizationFlag, ErrorsNameTheFlagAndWhatIsThere) {
  const auto message = [](const char* name, Method method) {
    return std::string(Check(name, method).message());
  };
  EXPECT_THAT(message("fp8", Method::kGptq),
              HasSubstr("--quantization=fp8: tiny has quantization_config.quant_method gptq"));
  EXPECT_THAT(message("awq_marlin", Method::kNone),
              HasSubstr("--quantization=awq: tiny has no quantization_config"));
  EXPECT_THAT(message("gptq", Method::kGguf), HasSubstr("--quantization=gptq: tiny is a GGUF file"));
}

}  // namespace
}  // namespace somnus
