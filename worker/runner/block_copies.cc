#include "worker/runner/block_copies.h"

#include "absl/container/flat_hash_set.h"

namespace somnus {

std::vector<BlockCopyCall> PlanBlockCopies(const google::protobuf::RepeatedPtrField<v1::BlockCopy>& copies) {
  std::vector<BlockCopyCall> calls;
  absl::flat_hash_set<int32_t> read, written;  // by the last call
  for (const v1::BlockCopy& copy : copies) {
    if (copy.src() == copy.dst()) continue;
    const bool touches =
        written.contains(copy.src()) || written.contains(copy.dst()) || read.contains(copy.dst());
    if (calls.empty() || touches || calls.back().src.size() == kMaxBlockCopiesOfCall) {
      calls.emplace_back();
      read.clear();
      written.clear();
    }
    calls.back().src.push_back(copy.src());
    calls.back().dst.push_back(copy.dst());
    read.insert(copy.src());
    written.insert(copy.dst());
  }
  return calls;
}

}  // namespace somnus
