#include "coordinator/openai/output_queue.h"

namespace somnus {
namespace {

int64_t Bytes(const std::vector<Logprobs>& positions) {
  size_t bytes = positions.size() * sizeof(Logprobs);
  for (const Logprobs& position : positions)
    bytes += position.token_ids.size() * sizeof(int32_t) + position.logprobs.size() * sizeof(float);
  return static_cast<int64_t>(bytes);
}

int64_t Bytes(const RequestOutput& output) {
  return static_cast<int64_t>(sizeof(output) + output.token_ids.size() * sizeof(int32_t) +
                              output.pooled.size() * sizeof(float)) +
         Bytes(output.logprobs) + Bytes(output.prompt_logprobs);
}

}  // namespace

void OutputQueue::Push(Queued output) {
  Outputs one;
  one.push_back(std::move(output));
  PushAll(std::move(one));
}

void OutputQueue::PushAll(Outputs outputs) {
  {
    absl::MutexLock lock(&mutex_);
    for (Queued& queued : outputs) {
      if (bytes_ > max_bytes_ && queued.output.finish_reason == FinishReason::kNone) {
        overflowed_ = true;
      } else {
        bytes_ += Bytes(queued.output);
        outputs_.push_back(std::move(queued));
      }
    }
    if (std::exchange(signalled_, true)) return;
  }
  on_ready_();
}

OutputQueue::Outputs OutputQueue::TakeAll() {
  absl::MutexLock lock(&mutex_);
  signalled_ = false;
  bytes_ = 0;
  return std::exchange(outputs_, {});
}

bool OutputQueue::overflowed() const {
  absl::MutexLock lock(&mutex_);
  return overflowed_;
}

}  // namespace somnus
