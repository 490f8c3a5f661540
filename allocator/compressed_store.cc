#include "allocator/compressed_store.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "allocator/host_arena.h"
#include "allocator/host_buffer.h"
#include "allocator/parallel.h"
#include "allocator/piece_codec.h"
#include "base/cpus.h"

namespace somnus {
namespace {

constexpr int64_t kPiece = 1 << 20;
// Pieces of a batch are worked on at the same time, by as many threads as ParallelRanges gives them.
constexpr int64_t kBatchPerThread = 8 << 20;
constexpr int kMaxThreads = 8;

int NumThreads() { return std::min(NumAllowedCpus(), kMaxThreads); }
int64_t BatchBytes() { return NumThreads() * kBatchPerThread; }

// Calls work(index) for every piece of a batch, on several threads.
void ForPieces(int64_t bytes, const std::function<void(int64_t)>& work) {
  ParallelRanges(bytes, kPiece, NumThreads(), [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += kPiece) work(begin / kPiece);
  });
}

int64_t PieceBytes(int64_t bytes, int64_t index) { return std::min(kPiece, bytes - index * kPiece); }

class CompressedBackup : public Backup {
 public:
  CompressedBackup(VmmDriver* driver, HostArena* arena, int64_t bytes)
      : driver_(driver), arena_(arena), bytes_(bytes) {}
  ~CompressedBackup() override {
    for (const Frame& frame : frames_) {
      for (const HostArena::Extent& part : frame) arena_->Give(part);
    }
  }

  int64_t stored_bytes() const override { return stored_bytes_; }

  absl::Status Save(const char* data) {
    HostBuffer staging(driver_);
    if (absl::Status status = staging.Allocate(std::min(bytes_, BatchBytes())); !status.ok()) return status;
    std::vector<std::string> frames(BatchBytes() / kPiece);
    for (int64_t at = 0; at < bytes_; at += BatchBytes()) {
      const int64_t batch = std::min(BatchBytes(), bytes_ - at);
      absl::Status status = driver_->CopyToHost(staging.data(), data + at, batch);
      status.Update(driver_->Synchronize());
      if (!status.ok()) return status;
      ForPieces(batch, [&](int64_t index) {
        CompressPiece(staging.data() + index * kPiece, PieceBytes(batch, index), &frames[index]);
      });
      for (int64_t index = 0; index * kPiece < batch; ++index) {
        status = Keep(frames[index]);
        if (!status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  // While one half of the staging memory is copied to the device, the next pieces are unpacked into the
  // second half.
  absl::Status Restore(void* data) override {
    const int64_t half = std::min(bytes_, BatchBytes());
    HostBuffer staging(driver_);
    if (absl::Status status = staging.Allocate(2 * half); !status.ok()) return status;
    absl::Status status;
    for (int64_t at = 0, batches = 0; at < bytes_ && status.ok(); at += half, ++batches) {
      char* const to = staging.data() + batches % 2 * half;
      const int64_t batch = std::min(half, bytes_ - at);
      status = Unpack(at / kPiece, batch, to);
      status.Update(driver_->Synchronize());
      if (status.ok()) status = driver_->CopyFromHost(static_cast<char*>(data) + at, to, batch);
    }
    status.Update(driver_->Synchronize());
    return status;
  }

 private:
  using Frame = std::vector<HostArena::Extent>;  // the parts of a frame; nearly always a single part

  absl::Status Keep(absl::string_view frame) {
    frames_.emplace_back();
    while (!frame.empty()) {
      absl::StatusOr<HostArena::Extent> part = arena_->Take(static_cast<int64_t>(frame.size()));
      if (!part.ok()) return part.status();
      frames_.back().push_back(*part);
      std::memcpy(part->data, frame.data(), part->bytes);
      driver_->NoteHostWritten(part->data, part->bytes);
      stored_bytes_ += part->bytes;
      frame.remove_prefix(part->bytes);
    }
    return absl::OkStatus();
  }

  absl::Status Unpack(int64_t first_piece, int64_t batch, char* to) const {
    absl::Mutex mu;
    absl::Status first_error;
    ForPieces(batch, [&](int64_t index) {
      std::string joined;
      absl::Status status = DecompressPiece(Join(frames_[first_piece + index], &joined),
                                            PieceBytes(batch, index), to + index * kPiece);
      absl::MutexLock lock(&mu);
      first_error.Update(status);
    });
    return first_error;
  }

  static absl::string_view Join(const Frame& frame, std::string* joined) {
    if (frame.size() == 1) return absl::string_view(frame[0].data, frame[0].bytes);
    for (const HostArena::Extent& part : frame) joined->append(part.data, part.bytes);
    return *joined;
  }

  VmmDriver* const driver_;
  HostArena* const arena_;
  const int64_t bytes_;
  int64_t stored_bytes_ = 0;
  std::vector<Frame> frames_;  // by piece
};

class CompressedStore : public BackupStore {
 public:
  CompressedStore(VmmDriver* driver, int64_t chunk_bytes) : driver_(driver), arena_(driver, chunk_bytes) {}

  bool in_host_memory() const override { return true; }
  void Expect(int64_t bytes) override { arena_.Expect(bytes / 3 * 2); }
  absl::StatusOr<std::unique_ptr<Backup>> Save(const void* data, int64_t bytes) override {
    auto backup = std::make_unique<CompressedBackup>(driver_, &arena_, bytes);
    if (absl::Status status = backup->Save(static_cast<const char*>(data)); !status.ok()) return status;
    return backup;
  }

 private:
  VmmDriver* const driver_;
  HostArena arena_;
};

}  // namespace

std::unique_ptr<BackupStore> MakeCompressedStore(VmmDriver* driver, int64_t chunk_bytes) {
  return std::make_unique<CompressedStore>(driver, chunk_bytes);
}

}  // namespace somnus
