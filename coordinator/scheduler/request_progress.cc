#include "coordinator/scheduler/request_progress.h"

#include "coordinator/scheduler/beam_group.h"

namespace somnus {

RequestProgress ProgressOf(const Sequence& sequence) {
  RequestProgress progress;
  progress.output_tokens.assign(sequence.tokens.end() - sequence.num_outputs(), sequence.tokens.end());
  if (sequence.beam.group != nullptr)
    progress.beams = std::make_shared<const BeamState>(sequence.beam.group->search.state());
  progress.num_prompt_logprobs = sequence.num_prompt_logprobs;
  progress.num_cached_tokens = sequence.num_cached;
  progress.was_scheduled = sequence.was_scheduled;
  progress.num_charged = sequence.num_charged;
  progress.avoids_prefix_cache = sequence.avoids_prefix_cache;
  progress.num_failures = sequence.num_failures;
  progress.num_tokens_at_failure = sequence.num_tokens_at_failure;
  progress.runs_alone = sequence.runs_alone;
  progress.effective_priority = sequence.effective_priority;
  progress.waited_steps = sequence.waited_steps;
  progress.moments = sequence.moments;
  progress.num_preemptions = sequence.num_preemptions;
  return progress;
}

void SetProgress(const RequestProgress& progress, Sequence* sequence) {
  // The beams of a search have theirs already.
  if (sequence->beam.group == nullptr)
    sequence->tokens.insert(sequence->tokens.end(), progress.output_tokens.begin(),
                            progress.output_tokens.end());
  sequence->num_prompt_logprobs = progress.num_prompt_logprobs;
  sequence->num_cached = progress.num_cached_tokens;
  sequence->was_scheduled = progress.was_scheduled;
  sequence->num_charged = progress.num_charged;
  sequence->avoids_prefix_cache = progress.avoids_prefix_cache;
  sequence->num_failures = progress.num_failures;
  sequence->num_tokens_at_failure = progress.num_tokens_at_failure;
  sequence->runs_alone = progress.runs_alone;
  sequence->effective_priority = progress.effective_priority;
  sequence->waited_steps = progress.waited_steps;
  sequence->moments = progress.moments;
  sequence->num_preemptions = progress.num_preemptions;
}

}  // namespace somnus
