#include "coordinator/engine/loop_requests.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/request/request_trail.h"

namespace somnus {

void LoopRequests::Add(std::vector<EngineRequest> requests) {
  std::string refused;
  for (EngineRequest& request : requests) {
    // Further choices of a prompt come directly after the first choice, and share the first choice's fate.
    const bool was_refused = !refused.empty() && request.fork_of == refused;
    const SequencePtr sequence = parts_.scheduler.Add(std::move(request));
    if (LacksAdapter(*sequence)) {
      EndWithoutAdapter(sequence);
      continue;
    }
    if (!was_refused && !IsHopeless(*sequence)) continue;
    if (!was_refused) refused = sequence->request.id;
    parts_.scheduler.Abort(sequence->request.id);
    EndExpired({sequence, ExpiryCause::kTtftEstimate});
  }
}

bool LoopRequests::IsHopeless(const Sequence& sequence) {
  const EngineRequest& request = sequence.request;
  const bool may_be = !sequence.was_scheduled && request.first_token_by != absl::InfiniteDuration() &&
                      request.fork_of.empty();
  const MonotonicTime now = parts_.options.monotonic_now();
  if (!may_be || request.first_token_by <= now) return false;
  const std::optional<absl::Duration> time = parts_.board.PrefillTime(parts_.scheduler.BacklogOf(sequence));
  return time.has_value() && now + *time > request.first_token_by;
}

void LoopRequests::Abort(const std::string& id) {
  if (SequencePtr sequence = parts_.scheduler.Abort(id))
    End(sequence, FinishReason::kAbort, absl::OkStatus());
}

void LoopRequests::EndExpired(MonotonicTime now) {
  for (const ExpiredSequence& expired : parts_.scheduler.Expire(now)) EndExpired(expired);
}

void LoopRequests::EndExpired(const ExpiredSequence& expired) {
  parts_.observer.OnRequestExpired(expired.cause);
  End(expired.sequence, FinishReason::kError, ExpiryError(expired.cause));
}

bool LoopRequests::LacksAdapter(const Sequence& sequence) const {
  const RequestAdapter* const adapter = sequence.request.adapter.get();
  return adapter != nullptr && !HasId(parts_.holdings.adapters(), adapter->id);
}

void LoopRequests::EndWithoutAdapter() {
  std::vector<SequencePtr> lost;
  const LiveSequences& live = parts_.scheduler.sequences();
  for (const auto& [key, sequence] : live.running()) {
    if (LacksAdapter(*sequence)) lost.push_back(sequence);
  }
  for (const auto& [key, sequence] : live.waiting()) {
    if (LacksAdapter(*sequence)) lost.push_back(sequence);
  }
  for (const SequencePtr& sequence : lost) EndWithoutAdapter(sequence);
}

void LoopRequests::EndWithoutAdapter(const SequencePtr& sequence) {
  if (parts_.scheduler.Abort(sequence->request.id) == nullptr) return;
  End(sequence, FinishReason::kError, parts_.holdings.WhyDropped(*sequence->request.adapter));
}

void LoopRequests::EndSuspects(const std::vector<SequencePtr>& suspects, const absl::Status& reason) {
  for (const SequencePtr& sequence : suspects) {
    if (RequestTrail* const trail = sequence->request.trail.get(); trail != nullptr)
      trail->Note(TrailEvent::kInterrupted, reason.message());
    if (!parts_.recovery.Suspect(sequence.get())) continue;
    parts_.scheduler.Abort(sequence->request.id);
    const absl::Status error =
        absl::UnavailableError(absl::StrCat("the request was being computed at ", sequence->num_failures,
                                            " failures of the workers; the last: ", reason.message()));
    LogWarning("{}request {} ended: {}", parts_.options.log_name, sequence->request.name(),
               std::string(error.message()));
    End(sequence, FinishReason::kError, error);
  }
}

void LoopRequests::EndAll(FinishReason reason, const absl::Status& error) {
  for (const SequencePtr& sequence : parts_.scheduler.AbortAll()) End(sequence, reason, error);
}

void LoopRequests::End(const SequencePtr& sequence, FinishReason reason, const absl::Status& error) {
  SequenceOutput output{sequence, {}};
  output.output.finish_reason = reason;
  output.output.error = error;
  output.output.num_cached_tokens = sequence->num_cached;
  output.output.weights_version = parts_.holdings.whole_version();
  publish_();
  Deliver(std::move(output), parts_.options.now());
}

void LoopRequests::Deliver(SequenceOutput output, absl::Time now) {
  Sequence& sequence = *output.sequence;
  RecoveryBook::Exonerate(&sequence);
  const bool has_tokens = !output.output.token_ids.empty() || !output.output.beams.empty();
  const bool is_first = has_tokens && sequence.moments.first_token == absl::InfinitePast();
  if (is_first) sequence.moments.first_token = now;
  if (!output.output.token_ids.empty()) {  // beams come all at once: they have no first token to wait for
    const absl::Time since = is_first ? sequence.request.arrival : sequence.moments.last_token;
    parts_.observer.OnTokens({.num_tokens = static_cast<int32_t>(output.output.token_ids.size()),
                              .has_first = is_first,
                              .wait = std::max(absl::ZeroDuration(), now - since)});
    sequence.moments.last_token = now;
  }
  if (RequestTrail* const trail = sequence.request.trail.get(); trail != nullptr) {
    trail->AddTokens(static_cast<int64_t>(output.output.token_ids.size()));
    trail->AddSteps(std::exchange(sequence.num_untold_steps, 0));
    if (is_first) trail->Note(TrailEvent::kFirstToken);
  }
  const FinishReason reason = output.output.finish_reason;
  if (is_first || reason != FinishReason::kNone)
    output.output.moments = std::make_shared<const RequestMoments>(sequence.moments);
  if (reason != FinishReason::kNone) {
    parts_.mail.Forget(sequence.request, sequence.was_scheduled);
    parts_.observer.OnRequestFinished(sequence.request,
                                      {.reason = reason,
                                       .num_output_tokens = static_cast<int32_t>(sequence.num_outputs()),
                                       .num_cached_tokens = sequence.num_cached,
                                       .num_preemptions = sequence.num_preemptions,
                                       .moments = sequence.moments,
                                       .finished = now});
  }
  sequence.request.sink->OnOutput(std::move(output.output));
}

void LoopRequests::NoteFirstScheduled(const std::vector<SequencePtr>& sequences) {
  const absl::Time now = parts_.options.now();
  for (const SequencePtr& sequence : sequences) {
    sequence->moments.scheduled = now;
    queue_time_ += now - sequence->request.arrival;
    parts_.mail.NoteScheduled(sequence->request);
    parts_.observer.OnRequestScheduled(sequence->request);
  }
  num_first_scheduled_ += static_cast<int64_t>(sequences.size());
}

void LoopRequests::HandOver() {
  if (!parts_.options.hand_over) return;
  std::vector<EngineRequest> requests = parts_.scheduler.ReleaseAll();
  std::vector<EngineRequest> arrived = parts_.mail.HandOver();
  requests.insert(requests.end(), std::make_move_iterator(arrived.begin()),
                  std::make_move_iterator(arrived.end()));
  publish_();
  for (const EngineRequest& request : requests) {
    if (request.trail != nullptr) request.trail->Note(TrailEvent::kMoved);
  }
  if (!requests.empty()) parts_.options.hand_over(std::move(requests));
}

void LoopRequests::Publish(EngineStats* stats) const {
  const Scheduler& scheduler = parts_.scheduler;
  const BlockManager& blocks = scheduler.blocks();
  const SchedulerStats& counters = scheduler.stats();
  stats->num_running = scheduler.num_running();
  stats->num_waiting = scheduler.num_waiting();
  stats->total_blocks = blocks.pool().num_total();
  stats->free_blocks = blocks.pool().num_free();
  stats->used_blocks = blocks.pool().num_used();
  stats->block_size = blocks.block_size();
  stats->num_preemptions = counters.num_preemptions();
  stats->preemptions = counters.preemptions;
  stats->swaps = counters.swaps;
  stats->prompt_tokens = counters.prompt_tokens;
  stats->forked_prompt_tokens = counters.forked_prompt_tokens;
  stats->corrupted_requests = counters.corrupted_requests;
  stats->generation_tokens = counters.generation_tokens;
  stats->prefix_cache_queries = counters.prefix_cache_queries;
  stats->prefix_cache_hits = counters.prefix_cache_hits;
  stats->prefix_cache_misses = counters.prefix_cache_misses;
  stats->copied_blocks = counters.block_copies;
  stats->watermark_refusals = blocks.watermark().num_refusals();
  stats->cached_blocks = blocks.pool().counts();
  stats->total_host_blocks = blocks.host().pool().num_total();
  stats->used_host_blocks = blocks.host().pool().num_used();
  stats->cached_host_blocks = blocks.host().cache().size();
  stats->speculation = scheduler.speculation();
  stats->num_forks = counters.num_forks;
  stats->given_back_blocks = counters.given_back_blocks;
  stats->kept_blocks = counters.kept_blocks;
  stats->kept_tokens = counters.kept_tokens;
  stats->num_first_scheduled = num_first_scheduled_;
  stats->queue_time = queue_time_;
}

}  // namespace somnus
