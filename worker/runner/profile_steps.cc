#include "worker/runner/profile_steps.h"

#include <algorithm>

#include "base/null_block.h"

namespace somnus {
namespace {

v1::StepSampling* AddSampling(v1::StepRequest* request) {
  v1::StepSampling* sampling = request->add_samplings();
  sampling->set_repetition_penalty(1);
  sampling->set_num_logprobs(-1);
  sampling->set_num_prompt_logprobs(-1);
  return sampling;
}

// Adds a sequence with the first of the request's samplings.
v1::NewSequence* AddSequence(int32_t slot, int32_t num_tokens, v1::StepRequest* request) {
  v1::NewSequence* sequence = request->add_new_sequences();
  sequence->set_slot(slot);
  for (int32_t i = 0; i < num_tokens; ++i) sequence->add_token_ids(0);
  sequence->set_num_prompt_tokens(num_tokens);
  v1::ScheduledSequence* scheduled = request->add_sequences();
  scheduled->set_slot(slot);
  scheduled->set_num_tokens(num_tokens);
  return sequence;
}

}  // namespace

v1::StepRequest LongestPrompt(int32_t num_tokens, int32_t total_blocks) {
  v1::StepRequest request;
  AddSampling(&request);
  v1::NewSequence* sequence = AddSequence(0, num_tokens, &request);
  for (int32_t i = 1; i <= total_blocks; ++i) sequence->add_block_ids(kNullBlock + i);
  return request;
}

v1::StepRequest WidestBatch(int32_t num_seqs, int32_t vocab_size, bool proposes) {
  v1::StepRequest request;
  request.add_freed_slots(0);
  for (int32_t slot = 0; slot < num_seqs; ++slot) {
    AddSequence(slot, 1, &request)->add_block_ids(kNullBlock);
    if (proposes) request.mutable_sequences(slot)->set_num_proposals(1);
  }
  if (num_seqs > 1) {  // one pools, which has a kernel of its own
    request.mutable_new_sequences(num_seqs - 1)->set_pooling(v1::STEP_POOLING_MEAN);
    request.mutable_sequences(num_seqs - 1)->clear_num_proposals();
  }
  AddSampling(&request);
  v1::StepSampling* sampling = AddSampling(&request);
  request.mutable_new_sequences(0)->set_sampling_index(1);
  sampling->set_temperature(1);
  sampling->set_top_k(std::min(20, vocab_size));
  sampling->set_top_p(0.9f);
  sampling->set_min_p(0.01f);
  sampling->set_repetition_penalty(1.1f);
  sampling->set_presence_penalty(0.1f);
  sampling->set_frequency_penalty(0.1f);
  sampling->set_num_logprobs(std::min(2, vocab_size));
  (*sampling->mutable_logit_bias())[0] = 1;
  sampling->add_allowed_token_ids(0);
  return request;
}

}  // namespace somnus
