#include "tools/bench/scheduler/decode_steps.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/monotonic.h"
#include "coordinator/scheduler/scheduler.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kStepTokens = 1 << 16;  // of the prompts, before the measurement
constexpr int32_t kLongPrompt = 512;
constexpr int32_t kSpareSlots = 64;  // where long prompts wait

SchedulerOptions MakeOptions(const DecodeStepOptions& options) {
  SchedulerOptions scheduler;
  // While the last prompts are computed, the first prompts' sequences decode already.
  const int64_t prefill_tokens = options.long_prompts > 0 ? kLongPrompt / 2 : kStepTokens / 2;
  const int64_t prefill_steps = int64_t{options.sequences} * options.context / prefill_tokens + kBlockSize;
  const auto longest = static_cast<int32_t>(options.context + options.steps + prefill_steps);
  const int32_t blocks_each = longest / kBlockSize + 1;
  scheduler.max_num_seqs = options.sequences;
  scheduler.max_num_batched_tokens = std::max(options.sequences, kStepTokens);
  scheduler.max_model_len = longest;
  scheduler.max_num_partial_prefills = scheduler.max_long_partial_prefills = options.sequences;
  if (options.users > 0) scheduler.accounts = UserAccounts::Create(options.users);
  if (options.long_prompts > 0) {
    scheduler.max_num_seqs += kSpareSlots;
    scheduler.max_num_batched_tokens = options.sequences + kLongPrompt;
    scheduler.max_num_partial_prefills = scheduler.max_long_partial_prefills = 1;
    scheduler.long_prefill_token_threshold = kLongPrompt / 2;
  }
  scheduler.blocks.block_size = kBlockSize;
  scheduler.blocks.watermark = 0;
  scheduler.blocks.num_blocks = scheduler.max_num_seqs * blocks_each + options.spare_blocks + 1;
  return scheduler;
}

EngineRequest MakeRequest(int32_t number, int32_t prompt_len, int32_t users) {
  EngineRequest request;
  request.id = absl::StrCat("request-", number);
  if (users > 0) request.user = absl::StrCat("user-", number % users);
  std::vector<int32_t> prompt(prompt_len, 1);
  prompt.front() = number;  // no two share a prefix
  request.prompt = std::move(prompt);
  request.max_tokens = 1 << 30;
  return request;
}

// The reply of made-up workers. `slots` holds for each slot how many tokens the slot's sequence has to
// compute still.
v1::StepReply MakeReply(const v1::StepRequest& request, std::vector<int64_t>* slots) {
  for (const v1::NewSequence& sequence : request.new_sequences())
    (*slots)[sequence.slot()] = sequence.token_ids_size() - sequence.num_computed_tokens();
  v1::StepReply reply;
  reply.set_step_id(request.step_id());
  for (const v1::ScheduledSequence& sequence : request.sequences()) {
    int64_t& left = (*slots)[sequence.slot()];
    left = std::max<int64_t>(0, left - sequence.num_tokens());
    if (left > 0) continue;
    v1::SampledToken* const token = reply.add_tokens();
    token->set_slot(sequence.slot());
    token->set_token_id(static_cast<int32_t>(request.step_id() % 1000));
  }
  return reply;
}

class Samples {
 public:
  void Add(absl::Duration time) { microseconds_.push_back(absl::ToDoubleMicroseconds(time)); }
  double Middle() const { return Median(microseconds_); }
  double Least() const { return *std::min_element(microseconds_.begin(), microseconds_.end()); }
  double Most() const { return *std::max_element(microseconds_.begin(), microseconds_.end()); }

 private:
  std::vector<double> microseconds_;
};

}  // namespace

DecodeStepTimes MeasureDecodeSteps(const DecodeStepOptions& options) {
  const SchedulerOptions scheduler_options = MakeOptions(options);
  Scheduler scheduler(scheduler_options);
  std::vector<int64_t> slots(scheduler_options.max_num_seqs, 0);
  for (int32_t i = 0; i < options.sequences + options.waiting; ++i)
    scheduler.Add(MakeRequest(i, i < options.sequences ? options.context : kBlockSize, options.users));
  const auto is_decode = [&](const StepPlan& plan) { return plan.num_tokens == options.sequences; };
  bool has_long_prompts = false;
  const auto add_long_prompts = [&] {
    for (int32_t i = 0; i < options.long_prompts; ++i) {
      EngineRequest request = MakeRequest(options.sequences + i, kLongPrompt, options.users);
      request.max_tokens = 0;
      scheduler.Add(std::move(request));
    }
    has_long_prompts = true;
  };
  DecodeStepTimes times;
  Samples schedule, encode, both, update;
  std::string bytes;
  for (int32_t measured = 0; measured < options.steps;) {
    const MonotonicTime begin = MonotonicNow();
    StepPlan plan = scheduler.Schedule();
    const MonotonicTime scheduled = MonotonicNow();
    plan.request.SerializeToString(&bytes);
    const MonotonicTime encoded = MonotonicNow();
    SOMNUS_CHECK(!plan.empty());
    const v1::StepReply reply = MakeReply(plan.request, &slots);
    const bool decodes_alone = is_decode(plan);
    const bool is_measured = options.long_prompts > 0 ? has_long_prompts : decodes_alone;
    scheduler.Reuse(std::move(plan.request));
    const MonotonicTime replied = MonotonicNow();
    SOMNUS_CHECK(scheduler.Update(reply).ok());
    if (decodes_alone && options.long_prompts > 0 && !has_long_prompts) add_long_prompts();
    if (!is_measured) continue;
    update.Add(MonotonicNow() - replied);
    schedule.Add(scheduled - begin);
    encode.Add(encoded - scheduled);
    both.Add(encoded - begin);
    ++measured;
  }
  times.schedule = schedule.Middle();
  times.encode = encode.Middle();
  times.both = both.Middle();
  times.least = both.Least();
  times.most = both.Most();
  times.update = update.Middle();
  times.message_bytes = static_cast<int64_t>(bytes.size());
  times.num_blocks = scheduler_options.blocks.num_blocks - 1;
  return times;
}

}  // namespace somnus
