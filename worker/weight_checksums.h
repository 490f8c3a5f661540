#pragma once
// Checksums of a rank's weights as they lie in memory, made part by part: steps and other calls may come
// between two parts. Used by one thread at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "proto/worker.pb.h"
#include "worker/runner/model_runner.h"

namespace somnus {

class WeightChecksums {
 public:
  // `version`: of the weights. `pieces` stay where they are until the end.
  WeightChecksums(int64_t version, std::vector<WeightPiece> pieces);
  ~WeightChecksums();
  WeightChecksums(const WeightChecksums&) = delete;
  WeightChecksums& operator=(const WeightChecksums&) = delete;

  int64_t version() const { return version_; }
  bool done() const { return next_ == pieces_.size(); }
  // Reads the next part, at most kPartBytes, and waits for the device. An error is the device's.
  absl::Status AddPart(Device* device);
  // When done: XXH3 of every piece, in the pieces' order.
  const v1::ChecksumWeightsResponse& response() const { return response_; }

  // A few milliseconds of a device's time: a step that comes meanwhile waits for so long.
  static constexpr int64_t kPartBytes = int64_t{32} << 20;

 private:
  struct Hash;  // XXH3's state, opaque

  const int64_t version_;
  const std::vector<WeightPiece> pieces_;
  const std::unique_ptr<Hash> hash_;  // of the piece `next_` up to offset_
  std::vector<uint8_t> buffer_;
  size_t next_ = 0;
  int64_t offset_ = 0;
  v1::ChecksumWeightsResponse response_;
};

}  // namespace somnus
