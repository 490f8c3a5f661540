// kernel_bench measures the matrix products of every type that the CPU computes with.

#include <gtest/gtest.h>

#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "kernels/ops.h"
#include "tools/bench/kernel_bench_cases.h"

namespace somnus {
namespace {

// As the bench's table has them; none where no weight has the type.
constexpr const char* kNames[] = {"f32 ",   "",      "f16 ",  nullptr, "fp8_e4m3 ", nullptr,
                                  "Q8_0 ",  "Q4_0 ", "Q4_1 ", "Q5_0 ", "Q5_1 ",     "IQ4_NL ",
                                  "MXFP4 ", "Q2_K ", "Q3_K ", "Q4_K ", "Q5_K ",     "Q6_K "};
static_assert(std::size(kNames) == kNumDataTypes, "kernel_bench has no row of the new type");

// Rows of whole blocks of any type, and of those alone that are not K types.
constexpr int64_t kWidth = 256, kNarrow = 32;

BenchModel Model(int64_t width) {
  return {.name = "tiny",
          .layers = 1,
          .hidden = width,
          .intermediate = width,
          .heads = width / 32,
          .kv_heads = 1,
          .head_dim = 32,
          .vocab = 64,
          .qk_norm = false};
}

std::unique_ptr<Device> Cpu() {
  auto device = Device::CreateCpu({.num_threads = 1});
  EXPECT_TRUE(device.ok()) << device.status();
  return std::move(device).value_or(nullptr);
}

// The matrix products that are reported, of one token and of a long prompt.
std::set<std::string> Reported(Device& device, int64_t width) {
  std::set<std::string> ops;
  const BenchModel model = Model(width);
  RunBenchCases(device, model, {.repeats = 1, .filter = "all linears"}, [&](const BenchResult& result) {
    EXPECT_EQ(result.model, "tiny");
    EXPECT_GT(result.best_seconds, 0) << result.op;
    EXPECT_GT(result.bytes, 0) << result.op;
    EXPECT_GT(result.flops, 0) << result.op;
    if (!result.op.ends_with(" M=1") && !result.op.ends_with(" M=512")) return;
    EXPECT_TRUE(ops.insert(result.op).second) << result.op << " was measured twice";
  });
  return ops;
}

// The same, of the types whose blocks divide rows of `width` values.
std::set<std::string> Wanted(const Device& device, int64_t width) {
  std::set<std::string> ops;
  for (int i = 0; i < kNumDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    if (kNames[i] == nullptr) continue;
    if (IsQuantized(type) && (!ComputesQuantized(device, type) || width % QuantBlockValues(type) != 0))
      continue;
    for (const char* tokens : {"M=1", "M=512"}) ops.insert(std::string("all linears ") + kNames[i] + tokens);
  }
  return ops;
}

TEST(KernelBench, EveryTypeOfWeightsIsMeasured) {
  const auto device = Cpu();
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(Reported(*device, kWidth), Wanted(*device, kWidth));
}

TEST(KernelBench, TypesWhoseBlocksDoNotDivideTheRowsAreLeftOut) {
  const auto device = Cpu();
  ASSERT_NE(device, nullptr);
  const std::set<std::string> wanted = Wanted(*device, kNarrow);
  EXPECT_LT(wanted.size(), Wanted(*device, kWidth).size());
  EXPECT_EQ(Reported(*device, kNarrow), wanted);
}

}  // namespace
}  // namespace somnus
