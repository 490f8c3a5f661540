#pragma once
// Whether drafts pay, by the time that steps take.
//
// A step with drafts takes longer than a step without drafts: for the tokens that it checks, for the passes
// of a draft model, and for the tokens that the draft model has to catch up with. In that time the sequences
// would have had tokens without drafts, which are the cost of the drafts; the gain is the tokens that were
// right.
//
// Values without a clock; not thread safe.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace somnus {

// How long steps without drafts take in which each of `num_sequences` sequences decodes, by size class, which
// is a power of two of sequences. Means of the last dozen steps or so.
class PlainStepTimes {
 public:
  static constexpr int32_t kFirst = 4;    // steps after which a class is known; the first step does not count
  static constexpr int32_t kLife = 256;   // steps with drafts after which a class is measured again
  static constexpr int32_t kRefresh = 2;  // steps, for that

  void Observe(int32_t num_sequences, double seconds) {
    SizeClass& size = ClassOf(num_sequences);
    size.num_lacking = std::max(0, size.num_lacking - 1);
    size.num_with_drafts = 0;
    if (++size.num_steps == 1) return;
    const double weight = 1.0 / static_cast<double>(std::min<int64_t>(16, size.num_steps - 1));
    size.seconds += weight * (seconds - size.seconds);
  }
  void NoteStepWithDrafts(int32_t num_sequences) {
    SizeClass& size = ClassOf(num_sequences);
    if (++size.num_with_drafts < kLife) return;
    size.num_with_drafts = 0;
    size.num_lacking = std::max(size.num_lacking, kRefresh);
  }
  // 0: not known.
  double Seconds(int32_t num_sequences) const {
    const SizeClass& size = classes_[IndexOf(num_sequences)];
    return size.num_steps < kFirst ? 0 : size.seconds;
  }
  // Whether steps without drafts have to be measured.
  bool Lacks(int32_t num_sequences) const { return classes_[IndexOf(num_sequences)].num_lacking > 0; }

 private:
  struct SizeClass {
    int64_t num_steps = 0;  // without drafts
    double seconds = 0;
    int32_t num_lacking = kFirst;
    int32_t num_with_drafts = 0;  // since the last step without drafts
  };
  static size_t IndexOf(int32_t num_sequences) {
    return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(num_sequences)));
  }
  SizeClass& ClassOf(int32_t num_sequences) { return classes_[IndexOf(num_sequences)]; }

  std::array<SizeClass, 33> classes_;
};

// The account of a sequence.
class DraftAccount {
 public:
  static constexpr int32_t kStepsToJudge = 8;
  enum class Verdict { kOpen, kPays, kDoesNotPay };

  // A step has had a draft of the sequence, or proposals for a draft. Cost and gain are in tokens; a cost
  // below 0 is a step that was quick by chance. Steps before the last verdict count half.
  Verdict Note(double gain, double cost) {
    gain_ += gain;
    cost_ += cost;
    if (++num_steps_ < kStepsToJudge) return Verdict::kOpen;
    const Verdict verdict = gain_ >= cost_ ? Verdict::kPays : Verdict::kDoesNotPay;
    gain_ /= 2;
    cost_ /= 2;
    num_steps_ = 0;
    return verdict;
  }

 private:
  double gain_ = 0, cost_ = 0;
  int32_t num_steps_ = 0;  // since the last verdict
};

}  // namespace somnus
