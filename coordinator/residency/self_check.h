#pragma once
// What the ranks of a group compute from a fixed prompt: by it a wake-up that has brought other bytes than
// those that went to sleep is known. Values; not thread safe.

#include <cstdint>
#include <string>

namespace somnus {

struct SelfCheckResult {
  int64_t weights_version = 0;  // the same on every rank
  uint64_t fingerprint = 0;     // of the logits, bit for bit
  // The ranks' devices and hosts, in order: other machines may round otherwise.
  std::string machines;
  // Their backends compute the same bits whenever they compute the same: CPUs do.
  bool bitwise = false;

  // Of the same weights on the same machines.
  bool ComparesWith(const SelfCheckResult& other) const {
    return weights_version == other.weights_version && machines == other.machines;
  }
};

// How a self-check has ended.
enum class SelfCheckOutcome {
  kTaken,      // there was nothing to compare with; from now on there is
  kSame,       // as it was taken
  kDifferent,  // not as it was taken, where the same bits are not promised
  kRefused,    // likewise where they are: nothing is served
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
