// Logit edits, token counts and penalties against the CPU's, bit by bit.

#include "tests/cuda/logits_test_util.h"

namespace somnus {
namespace {

using namespace cuda_test;

std::vector<int32_t> SomeIds(int64_t vocab, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(random() % vocab));
  return ids;
}

// Memory for counts on one device, full of what former sequences left.
struct Counts {
  Counts(const Device& device, int64_t slots, int64_t vocab)
      : outputs(std::vector<int32_t>(slots * vocab, 3)),
        in_prompt(std::vector<uint32_t>(slots * ((vocab + 31) / 32), 0x5a5a5a5au)),
        view{.outputs = outputs.On(device), .in_prompt = in_prompt.On(device), .vocab = vocab} {}
  DeviceArray<int32_t> outputs;
  DeviceArray<uint32_t> in_prompt;
  TokenCounts view;
};

// The steps of a request's life on one device.
void RunSteps(Device* device, const TensorView& logits, const Counts& counts) {
  const int64_t vocab = logits.cols, words = (vocab + 31) / 32;
  DeviceArray<int32_t> cleared({1, -1, 2}), rows({3, 0});
  ClearTokenCounts(*device, counts.view, cleared.On(*device), 3);
  DeviceArray<int32_t> prompt(SomeIds(vocab, 300, 1));
  MarkPromptTokens(*device, counts.view, 2, prompt.On(*device), 300);
  MarkPromptTokens(*device, counts.view, 1, prompt.On(*device), 0);
  std::vector<int32_t> slots(500, 1), ids = SomeIds(vocab, 500, 2);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i % 3 == 0) slots[i] = 2;
    if (i % 50 == 1) slots[i] = -1;
    if (i % 70 == 2) ids[i] = -1;
  }
  DeviceArray<int32_t> device_slots(slots), device_ids(ids);
  CountTokens(*device, counts.view, device_slots.On(*device), device_ids.On(*device), 500);

  std::vector<uint32_t> bits(2 * words);
  std::mt19937 random(3);
  for (uint32_t& word : bits) word = static_cast<uint32_t>(random());
  DeviceArray<uint32_t> masks(bits);
  KeepAllowed(*device, logits, rows.On(*device), masks.On(*device), 2);
  const int32_t last = static_cast<int32_t>(vocab - 1);
  DeviceArray<LogitEdit> edits(
      {{0, last, -kInf}, {1, 0, 1.5f}, {1, last, -100}, {2, last / 2, -kInf}, {3, 0, kInf}});
  EditLogits(*device, logits, edits.On(*device), vocab > 1 ? 5 : 2);
  DeviceArray<PenaltyRow> penalties(
      {{-1, 2, 2, 2}, {1, 1.3f, 0.37f, 0.2f}, {2, 0.7f, -1.1f, 2}, {2, 1, 0, 0}});
  ApplyPenalties(*device, logits, penalties.On(*device), counts.view);
  ASSERT_TRUE(device->Synchronize().ok());
}

void ExpectEqualTheCpu(int64_t vocab) {
  SCOPED_TRACE(vocab);
  const std::unique_ptr<Device> device = MakeCudaDevice(static_cast<uint64_t>(vocab));
  SOMNUS_SKIP_WITHOUT_GPU(device);
  DeviceMatrix got(DataType::kF32, 4, vocab, {vocab % 4, 1});
  kernel_test::Matrix want(DataType::kF32, 4, vocab);
  got.Randomize(5, 4, &want);
  got.Set(2, vocab / 2, NAN), want.Set(2, vocab / 2, NAN);
  got.Set(1, vocab / 2, -0.0f), want.Set(1, vocab / 2, -0.0f);
  const std::unique_ptr<Device> cpu = Oracle();
  Counts counts(*device, 4, vocab), want_counts(*cpu, 4, vocab);
  RunSteps(device.get(), got.view(), counts);
  RunSteps(cpu.get(), want.view(), want_counts);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < vocab; ++c) {
      if (std::isnan(want.Get(r, c)) && std::isnan(got.Get(r, c))) continue;
      ASSERT_EQ(got.Get(r, c), want.Get(r, c)) << "row " << r << ", id " << c;
    }
  }
  EXPECT_EQ(counts.outputs.Values(), want_counts.outputs.host());
  EXPECT_EQ(counts.in_prompt.Values(), want_counts.in_prompt.host());
}

TEST(LogitsEditsTest, SmallVocabulary) { ExpectEqualTheCpu(33); }

TEST(LogitsEditsTest, EqualTheCpu) {
  for (const int64_t vocab : {1, 31, 33, 1000, 1024, 2500}) ExpectEqualTheCpu(vocab);
}

}  // namespace
}  // namespace somnus
