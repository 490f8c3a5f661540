#include "worker/weight_checksums.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <memory>
#include <vector>

namespace somnus {
namespace {

constexpr int64_t kPart = WeightChecksums::kPartBytes;

// Bytes that differ from place to place.
std::vector<uint8_t> Bytes(int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  return bytes;
}

class WeightChecksumsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = Device::CreateCpu({.num_threads = 1});
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  // Returns the number of parts.
  int ReadAll(WeightChecksums* sums) {
    int parts = 0;
    for (; !sums->done(); ++parts) EXPECT_TRUE(sums->AddPart(device_.get()).ok());
    return parts;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(WeightChecksumsTest, EachPieceHasTheHashOfItsBytes) {
  const std::vector<uint8_t> large = Bytes(kPart + 7), small = Bytes(5);
  WeightChecksums sums(
      3, {{"small", small.data(), 5}, {"large", large.data(), kPart + 7}, {"none", nullptr, 0}});
  EXPECT_EQ(sums.version(), 3);
  EXPECT_EQ(ReadAll(&sums), 2) << "5 and kPart - 5 bytes, then 12";
  const v1::ChecksumWeightsResponse& response = sums.response();
  EXPECT_EQ(response.weights_version(), 3);
  ASSERT_EQ(response.weights_size(), 3);
  EXPECT_EQ(response.weights(0).name(), "small");
  EXPECT_EQ(response.weights(0).checksum(), XXH3_64bits(small.data(), small.size()));
  EXPECT_EQ(response.weights(1).bytes(), kPart + 7);
  EXPECT_EQ(response.weights(1).checksum(), XXH3_64bits(large.data(), large.size()));
  EXPECT_EQ(response.weights(2).checksum(), XXH3_64bits(nullptr, 0));
}

TEST_F(WeightChecksumsTest, OneByteMakesAnotherChecksum) {
  std::vector<uint8_t> bytes = Bytes(1000);
  WeightChecksums before(1, {{"a", bytes.data(), 1000}});
  ReadAll(&before);
  bytes[999] ^= 1;
  WeightChecksums after(1, {{"a", bytes.data(), 1000}});
  ReadAll(&after);
  EXPECT_NE(before.response().weights(0).checksum(), after.response().weights(0).checksum());
}

TEST_F(WeightChecksumsTest, NoWeightsAreDoneAtOnce) { EXPECT_TRUE(WeightChecksums(1, {}).done()); }

}  // namespace
}  // namespace somnus
