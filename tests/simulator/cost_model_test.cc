#include "tools/simulator/cost_model.h"

#include <gtest/gtest.h>

#include <fstream>

namespace somnus {
namespace {

std::vector<StepSample> SamplesOf(const CostModel& model) {
  std::vector<StepSample> samples;
  for (const int64_t prefill : {0, 64, 512}) {
    for (const int64_t decodes : {0, 1, 8, 32}) {
      for (const int64_t context : {16, 900}) {
        StepSample sample{.load = {prefill, decodes, prefill + decodes * context}};
        sample.seconds = model.StepSeconds(sample.load);
        samples.push_back(sample);
      }
    }
  }
  return samples;
}

TEST(CostModelTest, AStepCostsTheSumOfItsParts) {
  const CostModel model = {1, 0.1, 0.01, 0.001};
  EXPECT_DOUBLE_EQ(model.StepSeconds({3, 2, 5}), 1 + 0.3 + 0.02 + 0.005);
}

TEST(CostModelTest, TheFitFindsTheModelThatMadeTheSamples) {
  const CostModel model = {5e-3, 2e-4, 3e-4, 1e-6};
  const auto fit = FitCostModel(SamplesOf(model));
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_NEAR(fit->model.base, model.base, 1e-9);
  EXPECT_NEAR(fit->model.per_prefill_token, model.per_prefill_token, 1e-9);
  EXPECT_NEAR(fit->model.per_decode_sequence, model.per_decode_sequence, 1e-9);
  EXPECT_NEAR(fit->model.per_kv_token, model.per_kv_token, 1e-9);
  EXPECT_LT(fit->largest_error, 1e-6);
}

// Steps that become shorter with more to read would make time run backwards elsewhere.
TEST(CostModelTest, NoCoefficientIsNegative) {
  std::vector<StepSample> samples = SamplesOf({5e-3, 2e-4, 3e-4, 0});
  for (StepSample& sample : samples) sample.seconds -= 1e-7 * static_cast<double>(sample.load.kv_tokens);
  const auto fit = FitCostModel(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_GE(fit->model.per_kv_token, 0);
  EXPECT_GE(fit->model.per_prefill_token, 0);
  EXPECT_GT(fit->largest_error, 0);
  EXPECT_LE(fit->median_error, fit->p90_error);
  EXPECT_LE(fit->p90_error, fit->largest_error);
}

TEST(CostModelTest, ATermThatNoSampleHasIsZero) {
  std::vector<StepSample> samples = SamplesOf({5e-3, 2e-4, 3e-4, 1e-6});
  std::erase_if(samples, [](const StepSample& sample) { return sample.load.prefill_tokens > 0; });
  const auto fit = FitCostModel(samples);
  ASSERT_TRUE(fit.ok()) << fit.status();
  EXPECT_EQ(fit->model.per_prefill_token, 0);
  EXPECT_NEAR(fit->model.per_decode_sequence, 3e-4, 1e-9);
}

TEST(CostModelTest, TooFewSamplesAndTimelessOnesAreRefused) {
  EXPECT_EQ(FitCostModel({}).status().code(), absl::StatusCode::kInvalidArgument);
  std::vector<StepSample> samples = SamplesOf({1, 1, 1, 1});
  samples[3].seconds = 0;
  EXPECT_EQ(FitCostModel(samples).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CostModelTest, SamplesAreReadFromAFile) {
  const std::string path = testing::TempDir() + "/steps.jsonl";
  std::ofstream(path) << R"({"prefill_tokens": 64, "decode_sequences": 2, "kv_tokens": 90, "seconds": 0.5})"
                      << "\n";
  const auto samples = ReadStepSamples(path);
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 1u);
  EXPECT_EQ(samples->front().load.decode_sequences, 2);
  EXPECT_EQ(samples->front().seconds, 0.5);
  std::ofstream(path) << "{\"seconds\": 1}\n";
  EXPECT_FALSE(ReadStepSamples(path).ok());
  EXPECT_FALSE(ReadStepSamples(path + ".none").ok());
}

TEST(CostModelTest, WorkersHaveNames) {
  const auto paper = FindWorker("a100-opt-13b");
  ASSERT_TRUE(paper.ok());
  EXPECT_EQ(paper->kv_slots, 15728);
  EXPECT_EQ(FindWorker("abacus").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace somnus
