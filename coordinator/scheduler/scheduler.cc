#include "coordinator/scheduler/scheduler.h"

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/scheduler/constraints.h"
#include "coordinator/scheduler/request_progress.h"

namespace somnus {

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      long_prompts_(options_),
      blocks_(BlockOptionsOf(options_)),
      slots_(options_.max_num_seqs),
      host_tier_(options_, ledger_, &blocks_, &copies_, &stats_.swaps),
      beams_(options_, &blocks_, &slots_, &copies_, &stats_),
      drafts_(options_, &blocks_),
      constraints_(options_.mask_threads),
      sequences_(options_, long_prompts_, ledger_, &blocks_, &slots_, &host_tier_, &beams_,
                 &stats_.preemptions),
      continuation_(options_, long_prompts_, &blocks_, &beams_, &drafts_, &sequences_),
      admission_(options_, long_prompts_, &blocks_, slots_, &copies_, &host_tier_, &beams_, &sequences_,
                 &stats_),
      results_(options_, &blocks_, &ledger_, &host_tier_, &beams_, &drafts_, &sequences_, &stats_),
      kept_(ledger_, &blocks_, &host_tier_, &sequences_, &stats_) {
  SOMNUS_CHECK(options.max_num_partial_prefills >= 1 && options.max_long_partial_prefills >= 1);
}

SequencePtr Scheduler::Abort(const std::string& request_id) {
  SequencePtr sequence = sequences_.Find(request_id);
  if (sequence != nullptr) sequences_.Finish(sequence);
  return sequence;
}

std::vector<SequencePtr> Scheduler::AbortAll() {
  std::vector<SequencePtr> all;
  for (const auto& [key, sequence] : sequences_.running()) all.push_back(sequence);
  for (const auto& [key, sequence] : sequences_.waiting()) all.push_back(sequence);
  for (const SequencePtr& sequence : all) sequences_.Finish(sequence);
  return all;
}

std::vector<ExpiredSequence> Scheduler::Expire(MonotonicTime now) {
  std::vector<ExpiredSequence> expired;
  while (NextExpiry() <= now) {
    const SequencePtr sequence = sequences_.expiries().first();
    sequences_.Finish(sequence);
    expired.push_back({sequence, CauseOfExpiry(sequence->request, sequence->was_scheduled, now)});
  }
  return expired;
}

StepPlan Scheduler::Schedule() {
  StepPlan plan = MakeStep();
  const bool is_idle = num_running() == 0 && ledger_.empty() && num_waiting() > 0;
  int32_t left = is_idle ? blocks_.pins().size() : 0;
  while (plan.empty() && (left = blocks_.pins().GiveWay(left)) >= 0) plan = MakeStep();
  return plan;
}

StepPlan Scheduler::MakeStep() {
  sequences_.Age();
  if (options_.accounts != nullptr) sequences_.OrderByService();
  if (options_.policy == SchedulingPolicy::kPriority) admission_.DisplaceForFirstWaiting();
  StepBuilder builder(options_, long_prompts_, &blocks_, &ledger_, sequences_.running().size());
  const bool preempted = continuation_.Run(&builder);
  if (!preempted) admission_.Run(&builder);
  continuation_.AddOvertakers(&builder);
  builder.SpendRest();
  // A prompt that the rest completed makes room for the next one.
  if (!preempted) admission_.Run(&builder);
  builder.SpendRest();
  // A step that swaps is made in any case, so that blocks never wait for their contents.
  if (builder.plan.empty() && !host_tier_.has_swaps()) return std::move(builder.plan);
  return Send(preempted, &builder);
}

StepPlan Scheduler::Send(bool preempted, StepBuilder* builder) {
  StepPlan& plan = builder->plan;
  plan.num_tokens = static_cast<int32_t>(options_.max_num_batched_tokens - builder->budget);
  // Blocks become known only now: no sequence of this step may adopt blocks that the step itself fills.
  for (const ScheduledEntry& entry : builder->step.entries) {
    Sequence& sequence = *entry.sequence;
    ++sequence.num_untold_steps;
    if (entry.fills_blocks) blocks_.Commit(sequence.id, sequence.tokens, sequence.num_computed);
  }
  host_tier_.StoreCached(num_running(), builder);
  host_tier_.Send(builder);
  stats_.block_copies += copies_.Send(&plan.request);
  // The prefix cache knows the sources' blocks by now, so that the forks need not hash them again. Copies for
  // these forks go with the next step.
  admission_.BeginForks(builder);
  drafts_.AddTo(num_running(), preempted, builder);
  Constraints::AddTo(&builder->step, &plan.request);
  slots_.SendFreed(&plan.request);
  GiveBackUnseen(*builder);
  plan.request.set_step_id(ledger_.Add(std::move(builder->step)));
  return std::move(plan);
}

void Scheduler::GiveBackUnseen(const StepBuilder& builder) {
  if (options_.blocks.attention_reach == 0) return;
  for (const ScheduledEntry& entry : builder.step.entries) {
    // A beam may be computed again from the blocks of another beam, which is further on.
    if (entry.owner()->beam.group != nullptr) continue;
    stats_.given_back_blocks += blocks_.GiveBackUnseen(entry.sequence->id, entry.sequence->num_computed);
  }
}

std::optional<v1::StepMasks> Scheduler::TakeMasks() {
  InFlightStep* const step = ledger_.oldest();
  if (step == nullptr || !std::exchange(step->awaits_masks, false)) return std::nullopt;
  return constraints_.MakeMasks(*step);
}

absl::StatusOr<std::vector<SequenceOutput>> Scheduler::Update(const v1::StepReply& reply) {
  absl::StatusOr<InFlightStep> step = ledger_.Take(reply.step_id());
  RETURN_IF_ERROR(step.status());
  std::vector<SequenceOutput> outputs = results_.Apply(*step, reply);
  ledger_.Reuse(std::move(step->entries));
  return outputs;
}

void Scheduler::PreemptAll() {
  SOMNUS_CHECK(ledger_.empty());
  sequences_.PreemptAll(PreemptionCause::kReset);
}

void Scheduler::SuspendAll() {
  SOMNUS_CHECK(ledger_.empty());
  sequences_.SuspendAll();
}

void Scheduler::ForgetComputed(CacheLoss cause) {
  SOMNUS_CHECK(ledger_.empty());
  sequences_.PreemptAll(cause == CacheLoss::kFailure ? PreemptionCause::kFailure : PreemptionCause::kReset);
  host_tier_.ForgetAll(sequences_.waiting());
  copies_.Clear();
  blocks_.ResetPrefixCache(cause);
  blocks_.kept().Release();
}

std::vector<SequencePtr> Scheduler::Recover() {
  std::vector<SequencePtr> sequences = ledger_.DropAll();
  ForgetComputed(CacheLoss::kFailure);
  slots_.ForgetFreed();
  return sequences;
}

std::vector<EngineRequest> Scheduler::ReleaseAll() {
  SOMNUS_CHECK(num_running() == 0 && ledger_.empty());
  std::vector<EngineRequest> requests;
  WaitingQueue& waiting = sequences_.waiting();
  while (!waiting.empty()) {
    waiting.RefreshFirst();
    const SequencePtr sequence = waiting.begin()->second;
    sequences_.Finish(sequence);  // before its progress is taken, which counts the wait
    auto progress = std::make_shared<const RequestProgress>(ProgressOf(*sequence));
    requests.push_back(std::move(sequence->request));
    requests.back().progress = std::move(progress);
  }
  return requests;
}

StepPlan Scheduler::FlushFreedSlots() {
  StepPlan plan;
  if (!slots_.has_freed()) return plan;
  slots_.SendFreed(&plan.request);
  stats_.block_copies += copies_.Send(&plan.request);
  plan.request.set_step_id(ledger_.Add({}));
  return plan;
}

absl::Status Scheduler::CheckIntegrity() const {
  RETURN_IF_ERROR(blocks_.CheckIntegrity());
  return sequences_.CheckIntegrity();
}

absl::Status Scheduler::CheckSome() {
  RETURN_IF_ERROR(blocks_.CheckNextBlocks());
  return sequences_.CheckIntegrity();
}

}  // namespace somnus
