#pragma once
// Prompt lookup: what followed the last tokens where they occurred before, in the prompt or the output, may
// follow them again. It pays where an answer quotes its prompt.
//
// Of earlier occurrences the one counts that agrees with the most of the last `max` tokens, and with `min` at
// least; of equal ones the latest. As long as tokens follow as they did there, nothing is looked up anew. The
// index has every n-gram of `min` tokens in chains of those with the same hash, and grows with the sequence:
// at most 16 bytes a token, and a look-up follows a chain for kMaxCandidates links at most.

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

  // What follows an occurrence that reaches into the last tokens repeats itself, so that the draft has `most`
  // tokens where there is an occurrence at all.
  void Propose(absl::Span<const int32_t> tokens, int32_t most, std::vector<int32_t>* draft) override;

 private:
  // Goes on with the occurrence that was found last, as far as tokens follow as they did there.
  void Follow(absl::Span<const int32_t> tokens);
  // Indexes the n-grams that end before token `end`.
  void IndexUpTo(absl::Span<const int32_t> tokens, int32_t end);
  // Returns the end of the best earlier occurrence; 0: there is none.
  int32_t Find(absl::Span<const int32_t> tokens) const;
  size_t Bucket(const int32_t* ngram) const;

  const int32_t min_, max_;
  // An n-gram is known by its end, the place of the token after it, which is never 0.
  std::vector<int32_t> latest_;   // by bucket; 0: it is empty
  std::vector<int32_t> earlier_;  // by end: the next one of its bucket
  int32_t num_indexed_ = 0;       // ends before it are in the index
  int32_t num_seen_ = 0;          // tokens of the last call
  int32_t next_ = 0;              // where the occurrence goes on; 0: there is none
};

}  // namespace somnus
