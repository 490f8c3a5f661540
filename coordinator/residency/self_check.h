#pragma once
// The numbers that the ranks of a group compute from a fixed prompt. The numbers tell a wake-up that has
// brought other bytes than the bytes that went to sleep. Values; not thread safe.

#include <cstdint>
#include <string>

namespace somnus {

struct SelfCheckResult {
  int64_t weights_version = 0;  // the same on every rank
  uint64_t fingerprint = 0;     // of the logits, bit for bit
  // The ranks' devices and hosts, in order: other machines may round otherwise.
  std::string machines;
  // The backends of the ranks compute the same bits whenever the input is the same: CPUs do.
  bool bitwise = false;

  // Whether both results are of the same weights on the same machines.
  bool ComparesWith(const SelfCheckResult& other) const {
    return weights_version == other.weights_version && machines == other.machines;
  }
};

// How a self-check has ended.
enum class SelfCheckOutcome {
  kTaken,      // there was nothing to compare with; from now on there is
  kSame,       // equal to the result that was taken before
  kDifferent,  // not equal, where the same bits are not promised
  kRefused,    // not equal, where the same bits are promised: nothing is served
};
// "taken", "same", "different", "refused": the names that metrics use.
inline const char* SelfCheckOutcomeName(SelfCheckOutcome outcome) {
  switch (outcome) {
    case SelfCheckOutcome::kTaken:
      return "taken";
    case SelfCheckOutcome::kSame:
      return "same";
    case SelfCheckOutcome::kDifferent:
      return "different";
    case SelfCheckOutcome::kRefused:
      return "refused";
  }
  return "";
}

}  // namespace somnus
