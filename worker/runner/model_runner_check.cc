// ModelRunnerImpl's self-check: whether the weights and the tables in workspace compute what they did before
// a sleep.
#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "worker/runner/model_runner_impl.h"

namespace somnus {
namespace {

constexpr int32_t kMaxCheckTokens = 16;
// Far apart from each other, so that several ranks' parts of the embedding are read.
constexpr int64_t kTokenStride = 7919;

std::vector<int32_t> CheckPrompt(const BatchLimits& limits) {
  const int32_t length =
      std::min({kMaxCheckTokens, limits.block_size, limits.max_num_batched_tokens, limits.max_model_len});
  std::vector<int32_t> token_ids;
  for (int64_t i = 1; i <= length; ++i)
    token_ids.push_back(static_cast<int32_t>(i * kTokenStride % limits.vocab_size));
  return token_ids;
}

// FNV-1a over words of 32 bits.
uint64_t AddBits(uint64_t hash, const float* values, int64_t count) {
  constexpr uint64_t kPrime = 1099511628211u;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof(bits));
    hash = (hash ^ bits) * kPrime;
  }
  return hash;
}

}  // namespace

absl::StatusOr<uint64_t> ModelRunnerImpl::SelfCheck() {
  if (!failed_.ok()) return failed_;
  if (context_.kv_cache.empty()) return absl::FailedPreconditionError("the KV cache is not allocated");
  if (!state_.empty()) return absl::FailedPreconditionError("a sequence has a slot");
  absl::StatusOr<uint64_t> fingerprint = RunCheck();
  if (!fingerprint.ok()) failed_ = fingerprint.status();
  return fingerprint;
}

absl::StatusOr<uint64_t> ModelRunnerImpl::RunCheck() {
  RETURN_IF_ERROR(device_->Synchronize());  // the inputs' host buffers are free
  device_->BeginStep();
  absl::Cleanup end_step = [this] { device_->EndStep(); };
  inputs_.Turn();
  arrays_.BuildOnNullBlock(CheckPrompt(state_.limits()));
  inputs_.Upload(inputs_.bytes());
  arrays_.QueueNullBlock();
  ASSIGN_OR_RETURN(const TensorView hidden, RunForward(/*graph_size=*/0));
  ASSIGN_OR_RETURN(const TensorView logits, head_.Logits(hidden, {.count = hidden.rows, .all = true}));
  std::vector<float> values(static_cast<size_t>(logits.rows * logits.cols));
  for (int64_t row = 0; row < logits.rows; ++row) {
    device_->CopyToHost(values.data() + row * logits.cols, logits.row<float>(row),
                        logits.cols * static_cast<int64_t>(sizeof(float)));
  }
  RETURN_IF_ERROR(device_->Synchronize());
  RETURN_IF_ERROR(communicator_->status());
  if (communicator_->rank() != 0) return 0;
  constexpr uint64_t kOffset = 14695981039346656037u;
  return AddBits(kOffset, values.data(), static_cast<int64_t>(values.size()));
}

}  // namespace somnus
