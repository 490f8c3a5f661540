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
  Counts(int64_t slots, int64_t vocab)
      : outputs(std::vector<int32_t>(slots * vocab, 3)),
        in_prompt(std::vector<uint32_t>(slots * ((vocab + 31) / 32), 0x5a5a5a5au)),
        view{.outputs = outputs.data(), .in_prompt = in_prompt.data(), .vocab = vocab} {}
  DeviceArray<int32_t> outputs;
  DeviceArray<uint32_t> in_prompt;
  TokenCounts view;
};

// The steps of a request's life on one device; arrays are the device's, which the host's ops can read, too.
void RunSteps(Device* device, const TensorView& logits, const Counts& counts) {
  const int64_t vocab = logits.cols, words = (vocab + 31) / 32;
  DeviceArray<int32_t> cleared({1, -1, 2}), rows({3, 0});
  ClearTokenCounts(*device, counts.view, cleared.data(), 3);
  DeviceArray<int32_t> prompt(SomeIds(vocab, 300, 1));
  MarkPromptTokens(*device, counts.view, 2, prompt.data(), 300);
  MarkPromptTokens(*device, counts.view, 1, prompt.data(), 0);
  std::vector<int32_t> slots(500, 1), ids = SomeIds(vocab, 500, 2);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (i % 3 == 0) slots[i] = 2;
    if (i % 50 == 1) slots[i] = -1;
    if (i % 70 == 2) ids[i] = -1;
  }
  DeviceArray<int32_t> device_slots(slots), device_ids(ids);
  CountTokens(*device, counts.view, device_slots.data(), device_ids.data(), 500);

  std::vector<uint32_t> bits(2 * words);
  std::mt19937 random(3);
  for (uint32_t& word : bits) word = static_cast<uint32_t>(random());
  DeviceArray<uint32_t> masks(bits);
  KeepAllowed(*device, logits, rows.data(), masks.data(), 2);
  const int32_t last = static_cast<int32_t>(vocab - 1);
  DeviceArray<LogitEdit> edits(
      {{0, last, -kInf}, {1, 0, 1.5f}, {1, last, -100}, {2, last / 2, -kInf}, {3, 0, kInf}});
  EditLogits(*device, logits, edits.data(), vocab > 1 ? 5 : 2);
  DeviceArray<PenaltyRow> penalties(
      {{-1, 2, 2, 2}, {1, 1.3f, 0.37f, 0.2f}, {2, 0.7f, -1.1f, 2}, {2, 1, 0, 0}});
  ApplyPenalties(*device, logits, penalties.data(), counts.view);
  ASSERT_TRUE(device->Synchronize().ok());
}

TEST(LogitsEditsTest, EqualTheCpu) {
  for (const int64_t vocab : {1, 31, 33, 1000, 1024, 2500}) {
    SCOPED_TRACE(vocab);
    const std::unique_ptr<Device> device = MakeCudaDevice(static_cast<uint64_t>(vocab));
    SOMNUS_SKIP_WITHOUT_GPU(device);
    DeviceMatrix got(DataType::kF32, 4, vocab, {vocab % 4, 1}), want(DataType::kF32, 4, vocab);
    for (DeviceMatrix* x : {&got, &want}) {
      x->Randomize(5, 4);
      x->Set(2, vocab / 2, NAN);
      x->Set(1, vocab / 2, -0.0f);
    }
    Counts counts(4, vocab), want_counts(4, vocab);
    RunSteps(device.get(), got.view(), counts);
    RunSteps(Oracle().get(), want.view(), want_counts);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = 0; c < vocab; ++c) {
        if (std::isnan(want.Get(r, c)) && std::isnan(got.Get(r, c))) continue;
        ASSERT_EQ(got.Get(r, c), want.Get(r, c)) << "row " << r << ", id " << c;
      }
    }
    EXPECT_EQ(std::memcmp(counts.view.outputs, want_counts.view.outputs, 4 * vocab * 4), 0);
    EXPECT_EQ(std::memcmp(counts.view.in_prompt, want_counts.view.in_prompt, 4 * ((vocab + 31) / 32) * 4), 0);
  }
}

}  // namespace
}  // namespace somnus
