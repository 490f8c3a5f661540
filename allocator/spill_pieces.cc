#include "allocator/spill_pieces.h"

#include <errno.h>

#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

class PieceMover {
 public:
  PieceMover(SpillIo* io, const SpillRun& run)
      : io_(io), run_(run), operations_(run.depth), idle_(run.depth) {
    std::iota(idle_.begin(), idle_.end(), 0);
  }

  absl::Status Move() {
    while (true) {
      while (status_.ok() && next_ < run_.num_pieces && !idle_.empty()) Begin();
      if (idle_.size() == operations_.size()) return status_;
      Finish(io_->Wait());
    }
  }

 private:
  struct Operation {
    SpillPiece piece;
    int64_t index = 0;
    int64_t moved = 0;
  };

  void Begin() {
    const int slot = idle_.back();
    absl::StatusOr<SpillPiece> piece = run_.begin(slot, next_);
    status_.Update(piece.status());
    if (!piece.ok()) return;
    idle_.pop_back();
    operations_[slot] = {*piece, next_++, 0};
    Submit(slot);
  }

  void Submit(int slot) {
    const Operation& operation = operations_[slot];
    const SpillPiece& piece = operation.piece;
    char* const data = piece.data + operation.moved;
    const int64_t bytes = piece.bytes - operation.moved, offset = piece.offset + operation.moved;
    run_.write ? io_->Write(slot, data, bytes, offset) : io_->Read(slot, data, bytes, offset);
  }

  void Finish(const SpillIo::Completion& done) {
    Operation& operation = operations_[done.slot];
    absl::StatusOr<int64_t> moved = Advance(operation, done.result);
    status_.Update(moved.status());
    if (status_.ok()) {
      operation.moved = *moved;
      if (*moved < operation.piece.bytes) return Submit(done.slot);
      status_.Update(run_.end(done.slot, operation.index));
    }
    idle_.push_back(done.slot);
  }

  // Returns how much of the piece has moved: a multiple of kSpillAlign, so that the rest can go on from
  // there.
  absl::StatusOr<int64_t> Advance(const Operation& operation, int64_t result) const {
    if (result == -EINTR || result == -EAGAIN) return operation.moved;
    if (result < 0) return run_.failed(static_cast<int>(-result));
    const int64_t moved = (operation.moved + result) / kSpillAlign * kSpillAlign;
    if (moved > operation.moved) return moved;
    const int64_t at = operation.piece.offset + operation.moved + result;
    if (run_.write)
      return absl::ResourceExhaustedError(absl::StrCat("the spill file takes no more than ", at, " bytes"));
    return absl::DataLossError(absl::StrCat("the spill file ends at byte ", at));
  }

  SpillIo* const io_;
  const SpillRun& run_;
  absl::Status status_;
  int64_t next_ = 0;
  std::vector<Operation> operations_;  // by slot
  std::vector<int> idle_;              // slots
};

}  // namespace

absl::Status MovePieces(SpillIo* io, const SpillRun& run) { return PieceMover(io, run).Move(); }

}  // namespace somnus
