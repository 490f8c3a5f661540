#pragma once
// Lossless compression of memory that mostly holds floating-point numbers of any type.
//
// The exponents of trained weights are few, their mantissas are noise (ZipNN, arXiv:2411.05239). So a piece
// is taken apart into planes, one for each byte of a number, the exponent's bits in a byte of their own; each
// plane is compressed where that pays, else kept. The size of a number is guessed from the bytes: a wrong
// guess costs space alone. Bfloat16 shrinks to about two thirds. Stateless and thread safe.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace somnus {

// Unimplemented: this build has no zstd.
absl::Status CheckCompression();

// Replaces `frame` by the input of DecompressPiece, which is at most kMaxFrameOverhead longer than the piece.
// A piece has at most kMaxPieceBytes.
inline constexpr int64_t kMaxPieceBytes = int64_t{1} << 30;
inline constexpr int64_t kMaxFrameOverhead = 64;
void CompressPiece(const char* data, int64_t bytes, std::string* frame);

// Fills [data, data + bytes). DataLoss: the result differs from the compressed piece.
absl::Status DecompressPiece(absl::string_view frame, int64_t bytes, char* data);

}  // namespace somnus
