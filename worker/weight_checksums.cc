#include "worker/weight_checksums.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace somnus {

struct WeightChecksums::Hash {
  Hash() : state(XXH3_createState()) {
    SOMNUS_CHECK(state != nullptr);
    XXH3_64bits_reset(state);
  }
  ~Hash() { XXH3_freeState(state); }
  XXH3_state_t* const state;
};

WeightChecksums::WeightChecksums(int64_t version, std::vector<WeightPiece> pieces)
    : version_(version), pieces_(std::move(pieces)), hash_(std::make_unique<Hash>()) {
  response_.set_weights_version(version);
}

WeightChecksums::~WeightChecksums() = default;

absl::Status WeightChecksums::AddPart(Device* device) {
  buffer_.resize(static_cast<size_t>(kPartBytes));
  for (int64_t left = kPartBytes; left > 0 && !done();) {
    const WeightPiece& piece = pieces_[next_];
    const int64_t count = std::min(left, piece.bytes - offset_);
    device->CopyToHost(buffer_.data(), static_cast<const uint8_t*>(piece.data) + offset_, count);
    RETURN_IF_ERROR(device->Synchronize());
    XXH3_64bits_update(hash_->state, buffer_.data(), static_cast<size_t>(count));
    offset_ += count;
    left -= count;
    if (offset_ < piece.bytes) continue;
    v1::WeightChecksum* const sum = response_.add_weights();
    sum->set_name(piece.name);
    sum->set_bytes(piece.bytes);
    sum->set_checksum(XXH3_64bits_digest(hash_->state));
    XXH3_64bits_reset(hash_->state);
    ++next_;
    offset_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace somnus
