#pragma once
// Conversions between the scheduler's types and the step messages of proto/step.proto.

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/scheduler/sequence.h"
#include "proto/worker.pb.h"

namespace somnus {

// Adds sequences to the new_sequences of one StepRequest, and their sampling parameters to its samplings:
// once, however many sequences share the parameters.
class NewSequenceWriter {
 public:
  explicit NewSequenceWriter(v1::StepRequest* request) : request_(request) {}

  // Adds `sequence` whole: workers see the sequence for the first time, or again after a preemption.
  void Add(const Sequence& sequence, const std::vector<int32_t>& block_ids);
  // Returns how many bytes Add would add to the message at most.
  int64_t Cost(const Sequence& sequence, int32_t block_size) const;

 private:
  // A record of parameters, and whether prompt log-probabilities are still owed.
  using Key = std::pair<const SamplingParams*, bool>;
  static Key KeyOf(const Sequence& sequence);

  v1::StepRequest* const request_;
  std::map<Key, int32_t> sampling_index_;
};

// Names the last token of a sequence, which is known, as the input of its decode.
void NameInput(const Sequence& sequence, v1::ScheduledSequence* scheduled);

Logprobs FromMessage(const v1::StepLogprobs& message);

// Appends to `output` the log-probabilities of the chunk [start, start + num_tokens) of `sequence`'s prompt
// that were not delivered before. `message` may be null when the chunk has none. Internal when `message` does
// not fit the chunk.
absl::Status DeliverPromptLogprobs(const v1::PromptLogprobs* message, int64_t start, int64_t num_tokens,
                                   Sequence* sequence, RequestOutput* output);

}  // namespace somnus
