// Weights from checkpoints to the device: for every stored type, every type on the device and every part, the
// same bits as rows that went through f32 one by one (PackWeightRows); and the pinned buffers.

#include "worker/model/weight_upload.h"

#include <gmock/gmock.h>

#include <thread>

#include "kernels/cuda/weight_uploader.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/model/stored_tensors.h"
#include "worker/model/weight_loader.h"

namespace somnus::cuda_test {
namespace {

using ::testing::HasSubstr;
using Uploader = SOMNUS_CUDA_NAMESPACE::WeightUploader;

constexpr DataType kDeviceTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16};

std::vector<char> BytesOf(const DeviceBuffer& buffer) { return buffer.Values<char>(); }

struct Rectangle {
  Range rows, cols;
};

class WeightUploadTest : public testing::Test {
 protected:
  void SetUp() override { SOMNUS_SKIP_WITHOUT_GPU(device_ = MakeCudaDevice()); }

  // The parts of several tensors, stacked by rows as a fused matrix is.
  std::vector<char> Load(const std::vector<const TensorInfo*>& tensors, const Rectangle& part, DataType dtype,
                         int64_t max_bytes) {
    const int64_t rows = part.rows.size() * static_cast<int64_t>(tensors.size());
    DeviceBuffer buffer(rows * part.cols.size() * SizeOf(dtype));
    std::vector<UploadPiece> pieces;
    UploadPiece whole{nullptr, part.rows, part.cols, dtype, buffer.device<uint8_t>()};
    for (const TensorInfo* tensor : tensors) {
      whole.tensor = tensor;
      CutIntoPieces(whole, max_bytes, &pieces);
      whole.to += whole.bytes();
    }
    const absl::Status status =
        UploadPieces(*stored_, pieces, *device_->uploader(), NumLoadThreads(), nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return BytesOf(buffer);
  }

  std::vector<char> LoadThroughF32(const std::vector<const TensorInfo*>& tensors, const Rectangle& part,
                                   DataType dtype) {
    const int64_t n = part.rows.size(), k = part.cols.size();
    const int64_t all_rows = n * static_cast<int64_t>(tensors.size());
    DeviceBuffer buffer(all_rows * k * SizeOf(dtype));
    const LinearWeight weight{buffer.device<void>(), dtype, all_rows, k};
    std::vector<float> rows(n * k);
    int64_t row = 0;
    for (const TensorInfo* tensor : tensors) {
      EXPECT_TRUE(
          stored_
              ->ReadRows(*tensor, part.rows.begin, part.rows.end, part.cols.begin, part.cols.end, rows.data())
              .ok());
      PackWeightRows(*device_, weight, row, n, rows.data());
      row += n;
    }
    EXPECT_TRUE(device_->Synchronize().ok());
    return BytesOf(buffer);
  }

  std::unique_ptr<Device> device_;
  const std::unique_ptr<StoredTensors> stored_ = StoredTensors::Make(48, 512);
};

TEST_F(WeightUploadTest, EveryTypeAndPartAsThroughF32) {
  const Rectangle parts[] = {{{0, 48}, {0, 512}},    {{5, 29}, {0, 512}},   {{0, 48}, {3, 301}},
                             {{47, 48}, {256, 512}}, {{7, 20}, {511, 512}}, {{16, 24}, {32, 96}}};
  for (const TensorInfo* tensor : stored_->Tensors()) {
    for (const DataType dtype : kDeviceTypes) {
      for (const Rectangle& part : parts) {
        const std::vector<char> expected = LoadThroughF32({tensor}, part, dtype);
        for (const int64_t max_bytes : {Uploader::kSlotBytes, int64_t{1500}}) {
          ASSERT_EQ(Load({tensor}, part, dtype, max_bytes), expected)
              << tensor->name << " as " << static_cast<int>(dtype) << ", rows from " << part.rows.begin
              << ", columns from " << part.cols.begin << ", pieces of " << max_bytes;
        }
      }
    }
  }
}

TEST_F(WeightUploadTest, FusedMatricesAsThroughF32) {
  const auto find = [&](const char* name) { return stored_->Find(name); };
  const std::vector<const TensorInfo*> groups[] = {{find("BF16"), find("BF16"), find("permuted BF16")},
                                                   {find("permuted Q8_0"), find("Q4_K"), find("F32")},
                                                   {find("F16"), find("BF16")}};
  for (const auto& tensors : groups) {
    for (const DataType dtype : kDeviceTypes) {
      const Rectangle part{{8, 40}, {64, 448}};
      EXPECT_EQ(Load(tensors, part, dtype, 5000), LoadThroughF32(tensors, part, dtype));
    }
  }
}

// The bits of a NaN may carry information; weights that are stored in the device's type keep the bits.
TEST_F(WeightUploadTest, StoredInTheSameTypeIsByteForByte) {
  std::vector<uint16_t> every(1 << 16);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  TensorInfo tensor{};
  tensor.name = "all";
  tensor.shape = {256, 256};
  tensor.data = reinterpret_cast<const uint8_t*>(every.data());
  tensor.bytes = 2 * every.size();
  for (const bool bf16 : {false, true}) {
    tensor.type = bf16 ? StorageType::kBF16 : StorageType::kF16;
    const std::vector<char> loaded =
        Load({&tensor}, {{0, 256}, {0, 256}}, bf16 ? DataType::kBF16 : DataType::kF16, 4096);
    EXPECT_EQ(std::memcmp(loaded.data(), every.data(), tensor.bytes), 0);
  }
}

// Every buffer there may be is handed out, and no more.
TEST_F(WeightUploadTest, PinnedMemoryIsBounded) {
  Uploader uploader(0);
  std::vector<DeviceUploader::Buffer*> held;
  for (int i = 0; i < Uploader::kMaxSlots; ++i) {
    auto buffer = uploader.Acquire();
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::memset((*buffer)->data, i, static_cast<size_t>(uploader.buffer_bytes()));
    EXPECT_EQ(std::count(held.begin(), held.end(), *buffer), 0);
    held.push_back(*buffer);
  }
  std::atomic<bool> sent{false};
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    sent = true;
    uploader.Send(held[3], nullptr, 0, "nothing");
  });
  const auto next = uploader.Acquire();
  EXPECT_TRUE(sent) << "one more than there may be";
  late.join();
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, held[3]);
  for (DeviceUploader::Buffer* buffer : held) uploader.Send(buffer, nullptr, 0, "nothing");
  EXPECT_TRUE(uploader.Wait().ok());
}

// A single thread, many times the memory that there is.
TEST_F(WeightUploadTest, BuffersAreUsedAgain) {
  Uploader uploader(0);
  constexpr int kPieces = 3 * Uploader::kMaxSlots;
  constexpr int64_t kBytes = 1000;
  DeviceBuffer device(kPieces * kBytes);
  for (int i = 0; i < kPieces; ++i) {
    const auto buffer = uploader.Acquire();
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::memset((*buffer)->data, i, kBytes);
    uploader.Send(*buffer, device.device<char>() + i * kBytes, kBytes, "a piece");
  }
  ASSERT_TRUE(uploader.Wait().ok());
  const std::string all = device.Bytes();
  for (int64_t i = 0; i < kPieces * kBytes; ++i) ASSERT_EQ(all[i], i / kBytes);
}

TEST_F(WeightUploadTest, AnErrorOfACopyIsAnsweredOnceAndNamed) {
  Uploader uploader(0);
  const auto buffer = uploader.Acquire();
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  uploader.Send(*buffer, nullptr, 16, "tensor a.b");  // where nothing can be written
  EXPECT_THAT(uploader.Acquire().status().ToString(), HasSubstr("copying tensor a.b to the device: "));
  EXPECT_THAT(uploader.Wait().ToString(), HasSubstr("copying tensor a.b to the device: "));
  EXPECT_TRUE(uploader.Wait().ok());
  EXPECT_TRUE(uploader.Acquire().ok());
}

#ifdef SOMNUS_CUDA_EMULATOR
// Ops may wait for another rank that is still loading in this very process: a loading thread must not wait
// for ops.
TEST_F(WeightUploadTest, LoadingWaitsForNoOps) {
  auto seen = device_->AllocatePinned(4);
  ASSERT_TRUE(seen.ok());
  std::memset(*seen, 1, 4);
  DeviceBuffer device(4);  // full of ones
  device_->CopyToHost(*seen, device.device<void>(), 4);
  DeviceBuffer target(48 * 512 * 2);
  std::vector<UploadPiece> pieces;
  CutIntoPieces({stored_->Find("Q8_0"), {0, 48}, {0, 512}, DataType::kBF16, target.device<uint8_t>()}, 1000,
                &pieces);
  ASSERT_TRUE(UploadPieces(*stored_, pieces, *device_->uploader(), NumLoadThreads(), nullptr).ok());
  ASSERT_TRUE(device_->uploader()->Wait().ok());
  EXPECT_EQ(*static_cast<char*>(*seen), 1) << "the queued op has run";
  ASSERT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(*static_cast<unsigned char*>(*seen), 0xff);
  device_->FreePinned(*seen);
}
#endif

// Whole models, every rank of them: the region as if everything had been stored as f32.
class PlanUploadTest : public testing::TestWithParam<const char*> {};

std::vector<char> FillRegion(const Checkpoint& checkpoint, Device& device, DataType dtype, int rank,
                             int world_size) {
  WeightPlan plan =
      WeightPlan::Create(checkpoint, MakeShards(checkpoint.config(), rank, world_size), {dtype}, device)
          .value();
  DeviceBuffer region(plan.region_bytes());
  plan.Bind(region.device<void>());
  int64_t loaded = 0, total = -1;
  const absl::Status status = LoadWeights(plan, checkpoint, device, [&](int64_t done, int64_t all) {
    EXPECT_LT(loaded, done);
    loaded = done;
    total = all;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(loaded, total);
  return BytesOf(region);
}

TEST_P(PlanUploadTest, EveryRankAndTypeAsThroughF32) {
  const auto device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const auto checkpoint = Checkpoint::Open(std::string("tests/data/") + GetParam());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const AsF32 f32(**checkpoint);
  for (const DataType dtype : kDeviceTypes) {
    for (const int world_size : {1, 2, 3}) {
      for (int rank = 0; rank < world_size; ++rank) {
        ASSERT_EQ(FillRegion(**checkpoint, *device, dtype, rank, world_size),
                  FillRegion(f32, *device, dtype, rank, world_size))
            << "rank " << rank << " of " << world_size;
      }
    }
  }
}

std::string ModelName(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, PlanUploadTest,
                         testing::Values("tiny/llama-uneven", "tiny/opt", "tiny/qwen2",
                                         "variants/opt-postnorm", "variants/qwen3-untied",
                                         "gguf/llama-rope3.gguf", "gguf/qwen3.gguf"),
                         ModelName);

}  // namespace
}  // namespace somnus::cuda_test
