#include "allocator/spill_store.h"

#include <sys/statvfs.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allocator/host_buffer.h"
#include "allocator/memory_shortage.h"
#include "allocator/spill_file.h"
#include "allocator/spill_pieces.h"

namespace somnus {
namespace {

// Reads at once: enough for a fast disk, and 32 MiB of buffers where the device's memory is not the host's.
constexpr int kDepth = 4;

int64_t RoundUp(int64_t bytes) { return (bytes + kSpillAlign - 1) / kSpillAlign * kSpillAlign; }

int64_t FreeDiskBytes(int fd) {
  struct statvfs info;
  if (fstatvfs(fd, &info) != 0) return 0;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

// The state that a store's backups share.
struct Spill {
  VmmDriver* driver;
  SpillOptions options;
  std::unique_ptr<SpillFile> file;
};

// Host memory through which pieces pass, with room for a piece of each slot, where the file cannot reach the
// region itself.
class Staging {
 public:
  Staging(VmmDriver* driver, int64_t slot_bytes) : buffer_(driver), slot_bytes_(slot_bytes) {}

  absl::Status Init() { return buffer_.Allocate(kDepth * slot_bytes_ + kSpillAlign); }
  char* slot(int i) const {
    char* const aligned = reinterpret_cast<char*>(RoundUp(reinterpret_cast<int64_t>(buffer_.data())));
    return aligned + i * slot_bytes_;
  }

 private:
  HostBuffer buffer_;
  const int64_t slot_bytes_;
};

class SpillBackup : public Backup {
 public:
  SpillBackup(const Spill& spill, int64_t offset, int64_t bytes)
      : spill_(spill),
        offset_(offset),
        bytes_(bytes),
        piece_bytes_(std::min(spill.options.piece_bytes, RoundUp(bytes))),
        checksums_((bytes + piece_bytes_ - 1) / piece_bytes_) {}
  ~SpillBackup() override { spill_.file->Give(offset_, RoundUp(bytes_)); }

  int64_t stored_bytes() const override { return bytes_; }

  absl::Status Save(const char* data) {
    SpillRun run;
    run.write = true;
    run.begin = [&](int slot, int64_t index) -> absl::StatusOr<SpillPiece> {
      SpillPiece piece = PieceAt(slot, index, const_cast<char*>(data));
      if (absl::Status status = Fetch(piece.data, data, index); !status.ok()) return status;
      checksums_[index] = XXH3_64bits(piece.data, BytesOf(index));
      return piece;
    };
    run.end = [this](int, int64_t index) {
      CountMoved(index);
      return absl::OkStatus();
    };
    if (absl::Status status = Run(&run); !status.ok()) return status;
    return spill_.file->direct() ? absl::OkStatus() : spill_.file->DropCache();
  }

  absl::Status Restore(void* data) override {
    char* const to = static_cast<char*>(data);
    SpillRun run;
    run.begin = [&](int slot, int64_t index) { return PieceAt(slot, index, to); };
    run.end = [&](int slot, int64_t index) -> absl::Status {
      const char* const from = PieceAt(slot, index, to).data;
      if (XXH3_64bits(from, BytesOf(index)) != checksums_[index]) {
        return absl::DataLossError(
            absl::StrCat("the spill file does not hold what was written to it, from byte ",
                         offset_ + index * piece_bytes_));
      }
      CountMoved(index);
      return Deliver(to, from, index);
    };
    if (absl::Status status = Run(&run); !status.ok()) return status;
    return spill_.file->direct() ? absl::OkStatus() : spill_.file->DropCache();
  }

 private:
  bool in_place() const { return spill_.driver->HostIsDevice(); }
  int64_t BytesOf(int64_t index) const { return std::min(piece_bytes_, bytes_ - index * piece_bytes_); }

  SpillPiece PieceAt(int slot, int64_t index, char* region) const {
    const int64_t at = index * piece_bytes_;
    return {in_place() ? region + at : staging_->slot(slot), RoundUp(BytesOf(index)), offset_ + at};
  }

  absl::Status Run(SpillRun* run) {
    run->num_pieces = static_cast<int64_t>(checksums_.size());
    run->depth = kDepth;
    run->failed = [&](int error) { return spill_.file->Error(error, run->write ? "writing" : "reading"); };
    Staging staging(spill_.driver, RoundUp(piece_bytes_));
    if (!in_place()) {
      if (absl::Status status = staging.Init(); !status.ok()) return status;
    }
    staging_ = &staging;
    const std::unique_ptr<SpillIo> io = spill_.options.open_io(spill_.file->fd(), kDepth);
    return MovePieces(io.get(), *run);
  }

  // A piece's bytes come to the piece's slot, or go from there, before the slot is used again; operations of
  // other slots go on meanwhile.
  absl::Status Fetch(char* slot, const char* region, int64_t index) {
    if (in_place()) return absl::OkStatus();
    absl::Status status = spill_.driver->CopyToHost(slot, region + index * piece_bytes_, BytesOf(index));
    status.Update(spill_.driver->Synchronize());
    return status;
  }
  absl::Status Deliver(char* region, const char* slot, int64_t index) {
    if (in_place()) return absl::OkStatus();
    absl::Status status = spill_.driver->CopyFromHost(region + index * piece_bytes_, slot, BytesOf(index));
    status.Update(spill_.driver->Synchronize());
    return status;
  }

  // Elsewhere the copies to and from the slots count.
  void CountMoved(int64_t index) {
    if (in_place()) spill_.driver->Count(BytesOf(index));
  }

  const Spill& spill_;
  const int64_t offset_;
  const int64_t bytes_;
  const int64_t piece_bytes_;
  std::vector<uint64_t> checksums_;   // by piece
  const Staging* staging_ = nullptr;  // during Run
};

class SpillStore : public BackupStore {
 public:
  SpillStore(VmmDriver* driver, SpillOptions options) : spill_{driver, std::move(options), nullptr} {
    if (!spill_.options.open_io) spill_.options.open_io = MakeSpillIo;
    if (!spill_.options.free_bytes) spill_.options.free_bytes = FreeDiskBytes;
  }

  bool in_host_memory() const override { return false; }
  void Expect(int64_t bytes) override { expected_ = bytes; }
  absl::StatusOr<std::unique_ptr<Backup>> Save(const void* data, int64_t bytes) override {
    absl::StatusOr<std::unique_ptr<Backup>> backup = Write(data, bytes);
    if (!backup.ok()) return Shortage(backup.status(), std::max(expected_, bytes));
    expected_ = std::max<int64_t>(0, expected_ - bytes);
    return backup;
  }

 private:
  absl::StatusOr<std::unique_ptr<Backup>> Write(const void* data, int64_t bytes) {
    if (spill_.file == nullptr) {
      absl::StatusOr<std::unique_ptr<SpillFile>> file = SpillFile::Open(spill_.options.dir);
      if (!file.ok()) return file.status();
      spill_.file = *std::move(file);
    }
    absl::StatusOr<int64_t> offset = spill_.file->Take(RoundUp(bytes));
    if (!offset.ok()) return offset.status();
    auto backup = std::make_unique<SpillBackup>(spill_, *offset, bytes);
    if (absl::Status status = backup->Save(static_cast<const char*>(data)); !status.ok()) return status;
    return backup;
  }

  // The shortage of the disk for all `needed` bytes to be saved. Bytes written in vain have been given back
  // to the disk. Host memory for staging is no shortage of the disk.
  absl::Status Shortage(const absl::Status& status, int64_t needed) const {
    if (!absl::IsResourceExhausted(status) || !ShortagesOf(status).empty() || spill_.file == nullptr)
      return status;
    const int64_t free = spill_.options.free_bytes(spill_.file->fd());
    return WithShortages(status, {{.needed_bytes = needed,
                                   .missing_bytes = MissingOfRefused(needed, free),
                                   .memory = MemoryKind::kDisk}});
  }

  Spill spill_;
  int64_t expected_ = 0;
};

}  // namespace

std::unique_ptr<BackupStore> MakeSpillStore(VmmDriver* driver, SpillOptions options) {
  return std::make_unique<SpillStore>(driver, std::move(options));
}

absl::Status CheckSpillDir(const std::string& dir) { return SpillFile::Open(dir).status(); }

}  // namespace somnus
