#include "tools/simulator/paged_engine.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "coordinator/scheduler/request_check.h"

namespace somnus {
namespace {

// The workers' knowledge of a row of their batch state.
struct Slot {
  int64_t known = 0;     // tokens
  int64_t computed = 0;  // computed tokens at the end of the step under way
  int64_t blocks = 0;
};

class PagedEngine : public SimulatedEngine {
 public:
  PagedEngine(const SchedulerOptions& options, const PagedEngineOptions& paged)
      : options_(options),
        paged_(paged),
        scheduler_(options),
        candidates_(paged.seed),
        slots_(options.max_num_seqs) {
    scheduler_.SetPrices(paged.prices);
    if (paged.beams > 0) sampling_ = BeamSampling(paged.beams);
  }

  absl::Status Add(const LoadRequest& load) override {
    EngineRequest request;
    request.prompt = PromptTokens(load);
    request.sampling = sampling_;
    request.max_tokens = load.output;
    request.seed = static_cast<uint64_t>(load.id);
    if (absl::Status status = CheckRequest(options_, request); !status.ok()) return status;
    open_[load.id] = {paged_.n, false};
    for (int32_t choice = 0; choice < paged_.n; ++choice) {
      EngineRequest copy = request;
      copy.id = absl::StrCat(load.id, "-", choice);
      if (choice > 0) copy.fork_of = absl::StrCat(load.id, "-0");
      scheduler_.Add(std::move(copy));
    }
    return absl::OkStatus();
  }

  std::optional<StepLoad> BeginStep() override {
    StepPlan plan = scheduler_.Schedule();
    if (plan.empty()) return std::nullopt;
    reply_.Clear();
    reply_.set_step_id(plan.request.step_id());
    ApplyNew(plan.request);
    StepLoad load;
    // Read and written.
    load.kv_tokens += 2 * int64_t{plan.request.copies_size()} * options_.blocks.block_size;
    load.swapped_tokens =
        int64_t{plan.request.swap_outs_size() + plan.request.swap_ins_size()} * options_.blocks.block_size;
    for (const v1::ScheduledSequence& sequence : plan.request.sequences()) {
      Slot& slot = slots_[sequence.slot()];
      (slot.known - slot.computed > 1 ? load.prefill_tokens : load.decode_sequences) += sequence.num_tokens();
      slot.computed += sequence.num_tokens();
      computed_ += sequence.num_tokens();
      load.kv_tokens += slot.computed;
      slot.blocks += sequence.new_block_ids_size();
      blocks_ += sequence.new_block_ids_size();
      if (slot.computed == slot.known) Sample(sequence.slot());
    }
    for (const v1::SequenceFork& fork : plan.request.forks()) {
      const Slot& source = slots_[fork.source_slot()];
      Start(fork.slot(), {source.computed, source.computed, fork.block_ids_size()});
      Sample(fork.slot());
    }
    scheduler_.Reuse(std::move(plan.request));
    return load;
  }

  void EndStep(StepResult* result) override {
    const auto outputs = scheduler_.Update(reply_);
    SOMNUS_CHECK(outputs.ok());
    for (const SequenceOutput& output : *outputs) {
      const auto id = static_cast<int64_t>(output.sequence->request.seed);
      OpenRequest& open = open_.at(id);
      if (!std::exchange(open.has_token, true)) result->first_tokens.push_back(id);
      if (output.output.finish_reason == FinishReason::kNone || --open.choices > 0) continue;
      result->ended.push_back(id);
      open_.erase(id);
    }
  }

  KvUse kv_use() const override {
    const int64_t size = options_.blocks.block_size;
    KvUse use;
    use.total = int64_t{scheduler_.blocks().pool().num_total()} * size;
    use.held_slots = int64_t{scheduler_.blocks().pool().num_used()} * size;
    use.unshared_slots = blocks_ * size;
    // Slots of a table that are not computed yet are in unshared blocks.
    use.rounding = use.unshared_slots - computed_;
    use.live = use.held_slots - use.rounding;
    return use;
  }

  int64_t num_running() const override { return (scheduler_.num_running() + paged_.n - 1) / paged_.n; }
  int64_t num_preemptions() const override { return scheduler_.stats().num_preemptions(); }
  int64_t num_swap_preemptions() const override {
    const auto& by_swap = scheduler_.stats().preemptions.by_swap;
    return std::accumulate(by_swap.begin(), by_swap.end(), int64_t{0});
  }

 private:
  static std::shared_ptr<const SamplingParams> BeamSampling(int32_t beams) {
    auto sampling = std::make_shared<SamplingParams>();
    sampling->temperature = 0;
    sampling->num_logprobs = 2 * beams;
    sampling->beam_search = BeamSearchParams{.width = beams, .ignore_eos = true};
    return sampling;
  }

  void ApplyNew(const v1::StepRequest& request) {
    // All sources are read before any slot is written.
    std::vector<Slot> sources;
    for (const v1::SequenceFork& branch : request.branches()) sources.push_back(slots_[branch.source_slot()]);
    for (int i = 0; i < request.branches_size(); ++i) {
      const v1::SequenceFork& branch = request.branches(i);
      Stop(branch.slot());
      Start(branch.slot(), {sources[i].known, sources[i].computed, branch.block_ids_size()});
    }
    for (const int32_t index : request.freed_slots()) Stop(index);
    for (const v1::NewSequence& sequence : request.new_sequences()) {
      Start(sequence.slot(),
            {sequence.token_ids_size(), sequence.num_computed_tokens(), sequence.block_ids_size()});
    }
  }

  void Stop(int32_t index) {
    computed_ -= slots_[index].computed;
    blocks_ -= slots_[index].blocks;
    slots_[index] = {};
  }
  void Start(int32_t index, const Slot& slot) {
    slots_[index] = slot;
    computed_ += slot.computed;
    blocks_ += slot.blocks;
  }

  void Sample(int32_t index) {
    v1::SampledToken* const token = reply_.add_tokens();
    token->set_slot(index);
    token->set_token_id(0);
    if (paged_.beams > 0) *token->mutable_logprobs() = candidates_.Draw(2 * paged_.beams);
    ++slots_[index].known;
  }

  struct OpenRequest {
    int32_t choices = 1;  // that have not ended
    bool has_token = false;
  };

  const SchedulerOptions options_;
  const PagedEngineOptions paged_;
  Scheduler scheduler_;
  BeamCandidates candidates_;
  std::shared_ptr<const SamplingParams> sampling_ = std::make_shared<const SamplingParams>();
  v1::StepReply reply_;  // to the step under way
  std::vector<Slot> slots_;
  absl::flat_hash_map<int64_t, OpenRequest> open_;
  int64_t computed_ = 0;  // sums over the slots
  int64_t blocks_ = 0;
};

}  // namespace

std::vector<int32_t> PromptTokens(const LoadRequest& request) {
  // Blocks are told apart by all tokens up to their end, so a single different token is enough.
  constexpr int32_t kGroups = 1 << 30;
  std::vector<int32_t> tokens(request.input);
  std::iota(tokens.begin(), tokens.end(), 0);
  if (request.prefix > 0) tokens.front() = kGroups + static_cast<int32_t>(request.prefix_group);
  if (request.prefix < request.input) tokens[request.prefix] = static_cast<int32_t>(request.id % kGroups);
  return tokens;
}

SchedulerOptions ToSchedulerOptions(const EngineOptions& options) {
  SchedulerOptions scheduler;
  scheduler.max_num_seqs = options.max_num_seqs;
  scheduler.max_num_batched_tokens = options.max_num_batched_tokens;
  scheduler.max_model_len = options.max_model_len;
  scheduler.blocks.block_size = options.block_size;
  scheduler.blocks.num_blocks = static_cast<int32_t>(options.kv_slots / options.block_size) + 1;
  scheduler.blocks.enable_prefix_caching = options.enable_prefix_caching;
  scheduler.preemption = options.preemption;
  scheduler.blocks.num_host_blocks = static_cast<int32_t>(options.swap_slots / options.block_size);
  return scheduler;
}

v1::StepLogprobs BeamCandidates::Draw(int32_t count) {
  // The mean gap between the log-probabilities of successive continuations.
  constexpr double kMeanGap = 2;
  const double gap = random_.Exponential(kMeanGap);
  const double best = std::log1p(-std::exp(-gap));
  v1::StepLogprobs logprobs;
  logprobs.set_rank(1);
  for (int32_t rank = -1; rank < count; ++rank) {
    const int32_t token = std::max(rank, 0);
    logprobs.add_token_ids(token);
    logprobs.add_logprobs(static_cast<float>(best - gap * token));
  }
  return logprobs;
}

std::unique_ptr<SimulatedEngine> MakePagedEngine(const SchedulerOptions& options,
                                                 const PagedEngineOptions& paged) {
  return std::make_unique<PagedEngine>(options, paged);
}

}  // namespace somnus
