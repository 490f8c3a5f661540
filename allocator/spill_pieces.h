#pragma once
// Moves a run of pieces between memory and a file, several at a time.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allocator/spill_io.h"

namespace somnus {

struct SpillPiece {
  char* data = nullptr;  // a write only reads here
  int64_t bytes = 0;
  int64_t offset = 0;
};

struct SpillRun {
  bool write = false;
  int64_t num_pieces = 0;
  int depth = 1;  // operations at once, each in a slot
  // Called in the order of pieces, before a piece's operation begins.
  std::function<absl::StatusOr<SpillPiece>(int slot, int64_t piece)> begin;
  // Called when all bytes of a piece have moved.
  std::function<absl::Status(int slot, int64_t piece)> end;
  std::function<absl::Status(int error)> failed;  // the status for an errno
};

// Goes on with the rest of a piece that was moved in part. Returns the first error, when nothing is under way
// any longer. DataLoss: the file ends too early.
absl::Status MovePieces(SpillIo* io, const SpillRun& run);

}  // namespace somnus
