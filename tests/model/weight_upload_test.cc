// The pipeline from a checkpoint to a device's memory, with an uploader whose copies run late and can fail.

#include "worker/model/weight_upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/checkpoint/writers.h"
#include "tests/model/stored_tensors.h"

namespace somnus {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 64, kCols = 512;

// Copies when a buffer is acquired again, or at the end: a write that came too early shows.
class LateUploader : public DeviceUploader {
 public:
  LateUploader(int num_buffers, int64_t bytes) : bytes_(bytes), slots_(num_buffers) {
    for (Slot& slot : slots_) {
      slot.memory.resize(bytes);
      slot.data = slot.memory.data();
      free_.push_back(&slot);
    }
  }
  int64_t buffer_bytes() const override { return bytes_; }
  absl::StatusOr<Buffer*> Acquire() override {
    absl::MutexLock lock(&mutex_);
    const auto ready = [this] { return !free_.empty(); };
    mutex_.Await(absl::Condition(&ready));
    if (!error_.ok()) return error_;
    Slot* const slot = free_.front();
    free_.pop_front();
    Copy(slot);
    return slot;
  }
  void Send(Buffer* buffer, void* device, int64_t bytes, absl::string_view what) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_LE(bytes, bytes_);
    Slot* const slot = static_cast<Slot*>(buffer);
    slot->to = device;
    slot->used = bytes;
    free_.push_back(slot);
    if (bytes > 0 && ++sent == fail_at)
      error_ = absl::InternalError(absl::StrCat("copying ", what, ": broken bus"));
  }
  absl::Status Wait() override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(free_.size(), slots_.size()) << "a buffer was not given back";
    for (Slot* const slot : free_) Copy(slot);
    return std::exchange(error_, absl::OkStatus());
  }

  int fail_at = 0;  // the number of the copy that fails, counted from 1
  int sent = 0;
  std::atomic<int64_t> copied{0};

 private:
  struct Slot : Buffer {
    std::vector<char> memory;
    void* to = nullptr;
    int64_t used = 0;
  };
  void Copy(Slot* slot) {
    std::memcpy(slot->to == nullptr ? slot->data : slot->to, slot->data, slot->used);
    copied += slot->used;
    slot->used = 0;
  }

  const int64_t bytes_;
  absl::Mutex mutex_;
  std::vector<Slot> slots_;
  std::deque<Slot*> free_;
  absl::Status error_;
};

// All tensors, in order, as bf16.
struct Everything {
  explicit Everything(const Checkpoint& checkpoint, int64_t max_bytes) {
    int64_t total = 0;
    for (const TensorInfo* tensor : checkpoint.Tensors()) total += Cells(*tensor);
    memory.assign(total, 0xabcd);
    uint16_t* to = memory.data();
    for (const TensorInfo* tensor : checkpoint.Tensors()) {
      begins[tensor->name] = to - memory.data();
      const int64_t cols = tensor->shape.size() == 2 ? tensor->shape[1] : 1;
      CutIntoPieces(
          {tensor, {0, tensor->shape[0]}, {0, cols}, DataType::kBF16, reinterpret_cast<uint8_t*>(to)},
          max_bytes, &pieces);
      to += Cells(*tensor);
    }
  }
  static int64_t Cells(const TensorInfo& tensor) {
    int64_t cells = 1;
    for (const int64_t n : tensor.shape) cells *= n;
    return cells;
  }
  int64_t bytes() const { return static_cast<int64_t>(memory.size()) * 2; }
  // The bytes at the tensor's place; all places have one size.
  std::map<std::string, std::vector<uint16_t>> ByName() const {
    std::map<std::string, std::vector<uint16_t>> contents;
    for (const auto& [name, begin] : begins)
      contents[name].assign(memory.begin() + begin, memory.begin() + begin + kRows * kCols);
    return contents;
  }

  std::vector<uint16_t> memory;
  std::map<std::string, int64_t> begins;
  std::vector<UploadPiece> pieces;
};

// Reading row `row` of one tensor, or a later row, fails.
class FailingTensors : public AsF32 {
 public:
  FailingTensors(const Checkpoint& of, std::string name, int64_t row)
      : AsF32(of), name_(std::move(name)), row_(row) {}
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override {
    if (tensor.name == name_ && row_end > row_) return absl::DataLossError("the disk is gone");
    return AsF32::ReadRows(tensor, row_begin, row_end, col_begin, col_end, out);
  }

 private:
  const std::string name_;
  const int64_t row_;
};

TEST(WeightUpload, PiecesCoverARectangleInOrder) {
  const TensorInfo tensor{};
  uint8_t device[1];
  for (const int64_t rows : {0, 1, 7, 40}) {
    for (const int64_t cols : {0, 1, 33, 300}) {
      for (const int64_t max_bytes : {4, 64, 130, 4096, 1 << 20}) {
        const UploadPiece whole{&tensor, {5, 5 + rows}, {3, 3 + cols}, DataType::kBF16, device};
        std::vector<UploadPiece> pieces;
        CutIntoPieces(whole, max_bytes, &pieces);
        int64_t row = 5, col = 3;
        const uint8_t* to = device;
        for (const UploadPiece& piece : pieces) {
          ASSERT_EQ(piece.to, to);
          ASSERT_EQ(piece.rows.begin, row);
          ASSERT_EQ(piece.cols.begin, col);
          ASSERT_GT(piece.bytes(), 0);
          ASSERT_LE(piece.bytes(), max_bytes);
          // Only one row is ever cut.
          ASSERT_TRUE(piece.rows.size() == 1 || piece.cols.size() == cols);
          to += piece.bytes();
          col = piece.cols.end < whole.cols.end ? piece.cols.end : 3;
          if (col == 3) row = piece.rows.end;
        }
        EXPECT_EQ(to - device, whole.bytes());
      }
    }
  }
}

TEST(WeightUpload, BuffersAreUsedAgainOnlyWhenTheirCopyIsDone) {
  const auto checkpoint = StoredTensors::Make(kRows, kCols);
  const AsF32 f32(*checkpoint);
  for (const int buffers : {1, 2, 5}) {
    for (const int threads : {1, 4}) {
      Everything all(*checkpoint, 1000);
      LateUploader uploader(buffers, 1000);
      ASSERT_TRUE(UploadPieces(*checkpoint, all.pieces, uploader, threads, nullptr).ok());
      EXPECT_EQ(uploader.copied, all.bytes());
      Everything by_f32(f32, 1 << 20);
      LateUploader large(1, 1 << 20);
      ASSERT_TRUE(UploadPieces(f32, by_f32.pieces, large, 1, nullptr).ok());
      EXPECT_EQ(all.ByName(), by_f32.ByName());
    }
  }
}

TEST(WeightUpload, ProgressGrowsToTheTotal) {
  const auto checkpoint = StoredTensors::Make(kRows, kCols);
  Everything all(*checkpoint, 500);
  LateUploader uploader(3, 500);
  std::vector<int64_t> seen;
  std::atomic<int> inside{0};
  const auto progress = [&](int64_t loaded, int64_t total) {
    EXPECT_EQ(inside++, 0) << "one at a time";
    EXPECT_EQ(total, all.bytes());
    EXPECT_TRUE(loaded < total || uploader.copied == total) << "done before it was";
    seen.push_back(loaded);
    --inside;
  };
  ASSERT_TRUE(UploadPieces(*checkpoint, all.pieces, uploader, 4, progress).ok());
  ASSERT_GT(seen.size(), 2u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen.back(), all.bytes());
}

TEST(WeightUpload, NothingToLoadIsDone) {
  const auto checkpoint = StoredTensors::Make(8, 256);
  LateUploader uploader(1, 64);
  int calls = 0;
  const auto progress = [&](int64_t loaded, int64_t total) { calls += loaded == 0 && total == 0 ? 1 : 100; };
  EXPECT_TRUE(UploadPieces(*checkpoint, {}, uploader, 2, progress).ok());
  EXPECT_EQ(calls, 1);
}

TEST(WeightUpload, AReadErrorNamesTheTensorAndEndsIt) {
  const auto checkpoint = StoredTensors::Make(kRows, kCols);
  const FailingTensors failing(*checkpoint, "Q5_1", 30);
  for (const int threads : {1, 2, 5}) {
    Everything all(failing, 4096);
    LateUploader uploader(3, 4096);
    int64_t most = 0;
    const absl::Status status =
        UploadPieces(failing, all.pieces, uploader, threads, [&](int64_t loaded, int64_t) { most = loaded; });
    EXPECT_EQ(status.ToString(), "DATA_LOSS: reading tensor Q5_1: the disk is gone");
    EXPECT_LT(most, all.bytes());
    EXPECT_LT(uploader.copied, all.bytes());
    // The next load starts afresh.
    EXPECT_TRUE(
        UploadPieces(*checkpoint, Everything(*checkpoint, 4096).pieces, uploader, threads, nullptr).ok());
  }
}

TEST(WeightUpload, ACopyErrorNamesTheTensorAndEndsIt) {
  const auto checkpoint = StoredTensors::Make(kRows, kCols);
  for (const int threads : {1, 4}) {
    for (const int fail_at : {1, 40, 1 << 30}) {
      Everything all(*checkpoint, 4096);
      LateUploader uploader(3, 4096);
      // The last one's error comes with Wait.
      uploader.fail_at = std::min(fail_at, static_cast<int>(all.pieces.size()));
      int64_t most = 0;
      const absl::Status status = UploadPieces(*checkpoint, all.pieces, uploader, threads,
                                               [&](int64_t loaded, int64_t) { most = loaded; });
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
      EXPECT_THAT(status.message(), HasSubstr("copying tensor "));
      EXPECT_THAT(status.message(), HasSubstr(": broken bus"));
      EXPECT_LT(most, all.bytes());
      EXPECT_LE(uploader.sent, uploader.fail_at + threads);
    }
  }
}

// A file that is cut while mapped: every reader thread reads the file without harm.
TEST(WeightUpload, AFileThatIsCutIsAnError) {
  const std::string directory = MakeTempDir();
  for (const auto& entry : std::filesystem::directory_iterator("tests/data/tiny/llama-uneven"))
    WriteFile(directory + "/" + entry.path().filename().string(), ReadFile(entry.path()));
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  Everything all(**checkpoint, 4096);
  LateUploader uploader(4, 4096);
  ASSERT_TRUE(UploadPieces(**checkpoint, all.pieces, uploader, 4, nullptr).ok());
  std::filesystem::resize_file(directory + "/model.safetensors", 4096);
  const absl::Status status = UploadPieces(**checkpoint, all.pieces, uploader, 4, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors: the file was cut to 4096"));
  EXPECT_THAT(status.message(), HasSubstr(", and tensor "));
}

}  // namespace
}  // namespace somnus
