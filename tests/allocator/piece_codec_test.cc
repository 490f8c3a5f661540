#include "allocator/piece_codec.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace somnus {
namespace {

class PieceCodec : public testing::Test {
 protected:
  void SetUp() override {
    if (!CheckCompression().ok()) GTEST_SKIP() << CheckCompression();
  }

  // Returns the frame's size.
  static size_t RoundTrip(const std::string& piece) {
    std::string frame = "of another piece", back(piece.size(), '?');
    CompressPiece(piece.data(), static_cast<int64_t>(piece.size()), &frame);
    EXPECT_TRUE(DecompressPiece(frame, static_cast<int64_t>(piece.size()), back.data()).ok());
    EXPECT_TRUE(back == piece);
    return frame.size();
  }

  template <typename Number>
  std::string Numbers(int count, Number (*convert)(float)) {
    std::normal_distribution<float> weights(0, 0.05f);
    std::string piece;
    for (int i = 0; i < count; ++i) {
      const Number number = convert(weights(random_));
      piece.append(reinterpret_cast<const char*>(&number), sizeof(Number));
    }
    return piece;
  }

  std::mt19937 random_{7};
};

uint32_t Bits(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

TEST_F(PieceCodec, WeightsShrink) {
  const std::string bf16 =
      Numbers<uint16_t>(1 << 17, [](float x) { return static_cast<uint16_t>(Bits(x) >> 16); });
  EXPECT_LT(RoundTrip(bf16), bf16.size() * 0.70);
  const std::string f32 = Numbers<uint32_t>(1 << 17, Bits);
  EXPECT_LT(RoundTrip(f32), f32.size() * 0.86);
  EXPECT_LT(RoundTrip(std::string(1 << 20, '\0')), 1 << 10);
  std::string text;
  while (text.size() < 1 << 18) text += "a line of text, and another one ";
  EXPECT_LT(RoundTrip(text), text.size() / 2);
}

TEST_F(PieceCodec, NoiseGrowsByTheHeadAlone) {
  std::string noise(1 << 18, '\0');
  for (char& byte : noise) byte = static_cast<char>(random_());
  EXPECT_LE(RoundTrip(noise), noise.size() + kMaxFrameOverhead);
}

TEST_F(PieceCodec, AnySize) {
  const std::string numbers =
      Numbers<uint16_t>(1 << 10, [](float x) { return static_cast<uint16_t>(Bits(x) >> 16); });
  for (size_t size = 0; size < 70; ++size) RoundTrip(numbers.substr(0, size));
  for (size_t size : {511, 1021, 2047, 2048}) RoundTrip(numbers.substr(0, size));
}

TEST_F(PieceCodec, DamageIsFound) {
  const std::string piece =
      Numbers<uint16_t>(1 << 12, [](float x) { return static_cast<uint16_t>(Bits(x) >> 16); });
  std::string frame, back(piece.size(), '\0');
  const auto size = static_cast<int64_t>(piece.size());
  CompressPiece(piece.data(), size, &frame);
  for (size_t at = 0; at < frame.size(); at += 1 + at / 16) {
    std::string damaged = frame;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const absl::Status status = DecompressPiece(damaged, size, back.data());
    // Bytes behind the last used plane do not count.
    if (status.ok()) {
      EXPECT_EQ(back, piece) << at;
    } else {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    }
  }
  for (size_t length = 0; length < frame.size(); length += 1 + length / 16)
    EXPECT_TRUE(absl::IsDataLoss(DecompressPiece(frame.substr(0, length), size, back.data()))) << length;
  EXPECT_TRUE(absl::IsDataLoss(DecompressPiece(frame + "x", size, back.data())));
  EXPECT_TRUE(absl::IsDataLoss(DecompressPiece(frame, size - 1, back.data())));
}

}  // namespace
}  // namespace somnus
