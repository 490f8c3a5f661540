#include "tests/runner/mini_engine.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/status_macros.h"

namespace somnus {
namespace {

class MiniEngine {
 public:
  MiniEngine(RankGroup& group, const std::vector<MiniRequest>& requests, const MiniOptions& options)
      : group_(group), requests_(requests), options_(options), results_(requests.size()) {
    free_blocks_.resize(options.num_blocks - 1);
    std::iota(free_blocks_.rbegin(), free_blocks_.rend(), 1);
    if (options.block_seed != 0) {
      std::mt19937_64 random(options.block_seed);
      std::shuffle(free_blocks_.begin(), free_blocks_.end(), random);
    }
  }

  absl::StatusOr<std::vector<MiniResult>> Run() {
    while (next_ < requests_.size() || !running_.empty() || !freed_.empty()) RETURN_IF_ERROR(Step());
    return results_;
  }

 private:
  struct Running {
    size_t request;
    int32_t slot;
    int32_t computed = 0;
    bool ended = false;
    bool sent = false;
    std::vector<int32_t> blocks;
  };

  int32_t KnownTokens(const Running& r) const {
    return static_cast<int32_t>(requests_[r.request].prompt.size() + results_[r.request].tokens.size());
  }

  absl::Status Step() {
    v1::StepRequest request;
    request.set_step_id(++step_id_);
    for (int32_t slot : freed_) request.add_freed_slots(slot);
    freed_.clear();
    while (next_ < requests_.size() && static_cast<int32_t>(running_.size()) < options_.max_running) {
      running_.push_back({next_, FreeSlot()});
      ++next_;
    }
    int32_t budget = options_.max_step_tokens;
    for (Running& r : running_) Schedule(&r, &budget, &request);
    ASSIGN_OR_RETURN(const v1::StepReply reply, group_.Execute(request));
    Handle(reply);
    return absl::OkStatus();
  }

  int32_t FreeSlot() const {
    int32_t slot = 0;
    while (std::any_of(running_.begin(), running_.end(), [&](const Running& r) { return r.slot == slot; }))
      ++slot;
    return slot;
  }

  void Schedule(Running* r, int32_t* budget, v1::StepRequest* request) {
    const MiniRequest& of = requests_[r->request];
    const int32_t n = std::min({KnownTokens(*r) - r->computed, options_.chunk, *budget});
    if (n <= 0) return;
    *budget -= n;
    r->computed += n;
    std::vector<int32_t> added;
    while (static_cast<int32_t>(r->blocks.size()) * options_.block_size < r->computed) {
      r->blocks.push_back(free_blocks_.back());
      added.push_back(free_blocks_.back());
      free_blocks_.pop_back();
    }
    v1::ScheduledSequence* sequence = request->add_sequences();
    sequence->set_slot(r->slot);
    sequence->set_num_tokens(n);
    if (r->sent) {
      const std::vector<int32_t>& outputs = results_[r->request].tokens;
      if (group_.num_stages() > 1 && !outputs.empty()) {  // the first stages do not know the sampled tokens
        sequence->add_input_token_ids(outputs.back());
        sequence->set_start_position(KnownTokens(*r) - 1);
      }
      sequence->mutable_new_block_ids()->Add(added.begin(), added.end());
      return;
    }
    r->sent = true;
    v1::NewSequence* fresh = request->add_new_sequences();
    fresh->set_slot(r->slot);
    fresh->mutable_token_ids()->Add(of.prompt.begin(), of.prompt.end());
    fresh->set_num_prompt_tokens(static_cast<int32_t>(of.prompt.size()));
    fresh->mutable_block_ids()->Add(added.begin(), added.end());
    fresh->set_sampling_index(request->samplings_size());
    fresh->set_seed(of.seed);
    fresh->set_pooling(of.pooling);
    fresh->set_adapter_slot(of.adapter_slot);
    *request->add_samplings() = of.sampling;
  }

  void Handle(const v1::StepReply& reply) {
    for (const v1::PromptLogprobs& p : reply.prompt_logprobs()) {
      MiniResult& result = results_[Find(p.slot())->request];
      result.prompt_logprobs.insert(result.prompt_logprobs.end(), p.positions().begin(), p.positions().end());
    }
    for (const v1::SlotError& error : reply.slot_errors()) {
      Running& r = *Find(error.slot());
      if (!r.ended)
        results_[r.request].error =
            absl::Status(static_cast<absl::StatusCode>(error.code()), error.message());
      r.ended = true;
      r.computed = -1;
    }
    for (const v1::PooledState& pooled : reply.pooled()) {
      Running& r = *Find(pooled.slot());
      results_[r.request].pooled.assign(pooled.values().begin(), pooled.values().end());
      r.ended = true;
      r.computed = -1;
    }
    for (const v1::SampledToken& token : reply.tokens()) {
      Running& r = *Find(token.slot());
      MiniResult& result = results_[r.request];
      if (r.ended) {
        r.computed = -1;  // the stale token: dropped
        continue;
      }
      result.tokens.push_back(token.token_id());
      if (token.has_logprobs()) result.logprobs.push_back(token.logprobs());
      r.ended = static_cast<int32_t>(result.tokens.size()) == requests_[r.request].max_tokens;
      if (r.ended && !options_.stale_steps) r.computed = -1;
    }
    for (const Running& r : running_) {
      if (r.computed >= 0) continue;
      freed_.push_back(r.slot);
      free_blocks_.insert(free_blocks_.end(), r.blocks.begin(), r.blocks.end());
    }
    std::erase_if(running_, [](const Running& r) { return r.computed < 0; });
  }

  std::vector<Running>::iterator Find(int32_t slot) {
    return std::find_if(running_.begin(), running_.end(), [&](const Running& r) { return r.slot == slot; });
  }

  RankGroup& group_;
  const std::vector<MiniRequest>& requests_;
  const MiniOptions options_;
  std::vector<MiniResult> results_;
  std::vector<Running> running_;
  std::vector<int32_t> free_blocks_, freed_;
  size_t next_ = 0;
  int64_t step_id_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<MiniResult>> RunAll(RankGroup& group, const std::vector<MiniRequest>& requests,
                                               const MiniOptions& options) {
  return MiniEngine(group, requests, options).Run();
}

absl::StatusOr<std::vector<int32_t>> RunAhead(ModelRunner& runner, const MiniRequest& request) {
  std::vector<int32_t> tokens;
  std::unique_ptr<PendingStep> last;
  for (int k = 0; k <= request.max_tokens; ++k) {
    v1::StepRequest step;
    step.set_step_id(k + 1);
    if (k == request.max_tokens) {
      step.add_freed_slots(0);
    } else {
      step.add_sequences()->set_num_tokens(1);
    }
    if (k == 0) {
      v1::NewSequence* fresh = step.add_new_sequences();
      fresh->mutable_token_ids()->Add(request.prompt.begin(), request.prompt.end());
      fresh->set_num_prompt_tokens(static_cast<int32_t>(request.prompt.size()));
      for (int block = 1; block <= 4; ++block) fresh->add_block_ids(block);
      fresh->set_seed(request.seed);
      *step.add_samplings() = request.sampling;
      step.mutable_sequences(0)->set_num_tokens(static_cast<int32_t>(request.prompt.size()));
    }
    ASSIGN_OR_RETURN(std::unique_ptr<PendingStep> next, runner.Launch(step));
    if (last != nullptr) {
      ASSIGN_OR_RETURN(const v1::StepReply reply, last->Wait());
      for (const v1::SampledToken& token : reply.tokens()) tokens.push_back(token.token_id());
    }
    last = std::move(next);
  }
  RETURN_IF_ERROR(last->Wait().status());
  return tokens;
}

}  // namespace somnus
