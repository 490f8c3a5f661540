#pragma once
// Prompt lookup: tokens that followed an earlier occurrence of the last tokens, in the prompt or the output,
// may follow the last tokens again. The lookup pays where an answer quotes the prompt.
//
// The best occurrence agrees with the most of the last `max` tokens, and with `min` at least; of equally good
// occurrences the latest counts. As long as tokens follow as at that occurrence, nothing is looked up anew.
// The index has every n-gram of `min` tokens in chains of n-grams with the same hash, and grows with the
// sequence: at most 16 bytes a token, and a look-up follows a chain for kMaxCandidates links at most.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/scheduler/drafter.h"

namespace somnus {

class NgramLookup : public Drafter {
 public:
  static constexpr int kMaxCandidates = 16;

  // 1 <= min <= max.
  NgramLookup(int32_t min, int32_t max) : min_(min), max_(max) {}

  // The continuation of an occurrence that reaches into the last tokens repeats itself, so that the draft has
  // `most` tokens where there is an occurrence at all.
  void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override;

 private:
  // Goes on with the occurrence that was found last, as far as tokens follow as at that occurrence.
  void Follow(absl::Span<const int32_t> tokens);
  // Indexes the n-grams that end before token `end`.
  void IndexUpTo(absl::Span<const int32_t> tokens, int32_t end);
  // Returns the end of the best earlier occurrence; 0: there is none.
  int32_t Find(absl::Span<const int32_t> tokens) const;
  size_t Bucket(const int32_t* ngram) const;

  const int32_t min_, max_;
  // An n-gram is known by its end, the place of the token after the n-gram, which is never 0.
  std::vector<int32_t> latest_;   // by bucket; 0: the bucket is empty
  std::vector<int32_t> earlier_;  // by end: the next end of the same bucket
  int32_t num_indexed_ = 0;       // ends below this number are in the index
  int32_t num_seen_ = 0;          // tokens of the last call
  int32_t next_ = 0;              // where the occurrence goes on; 0: there is none
};

}  // namespace somnus
