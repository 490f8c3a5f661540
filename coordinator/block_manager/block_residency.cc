#include "coordinator/block_manager/block_residency.h"

namespace somnus {

// Marsaglia's xorshift (2003): 53 bits of the state are a number from 0 to 1.
bool BlockResidency::IsSampled() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<double>(random_ >> 11) * 0x1p-53 < sample_rate_;
}

void BlockResidency::NoteAllocated(int32_t id, bool was_cached) {
  if (const auto found = blocks_.find(id); found != blocks_.end()) {
    if (was_cached) NoteEnd(found->second);
    blocks_.erase(found);
  }
  if (IsSampled()) blocks_[id] = {now_(), {}};
}

void BlockResidency::NoteAccess(int32_t id) {
  const auto found = blocks_.find(id);
  if (found == blocks_.end()) return;
  std::vector<MonotonicTime>& accesses = found->second.accesses;
  if (accesses.size() == kMaxAccesses) accesses.erase(accesses.begin());
  accesses.push_back(now_());
}

void BlockResidency::NoteEnd(const Sampled& sampled) {
  if (ended_.size() == kMaxStays) return;
  const MonotonicTime now = now_();
  const std::vector<MonotonicTime>& accesses = sampled.accesses;
  BlockStay stay = {.lifetime = now - sampled.begin,
                    .idle = now - (accesses.empty() ? sampled.begin : accesses.back())};
  for (size_t i = 1; i < accesses.size(); ++i) stay.reuse_gaps.push_back(accesses[i] - accesses[i - 1]);
  ended_.push_back(std::move(stay));
}

}  // namespace somnus
