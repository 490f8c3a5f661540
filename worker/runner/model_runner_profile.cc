// What ModelRunnerImpl runs before the first step: the largest steps on scratch memory, and the decode
// graphs, so that all memory that serving needs has been taken when the KV cache is given the rest.
#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/null_block.h"
#include "base/status_macros.h"
#include "worker/runner/model_runner_impl.h"

namespace somnus {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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

v1::StepRequest LongestPrompt(int32_t num_tokens, int32_t total_blocks) {
  v1::StepRequest request;
  AddSampling(&request);
  v1::NewSequence* sequence = AddSequence(0, num_tokens, &request);
  for (int32_t i = 1; i <= total_blocks; ++i) sequence->add_block_ids(kNullBlock + i);
  return request;
}

// A step of as many sequences as there may be, one of them with every sampling parameter: every rank then
// gathers whole logits and runs all of sampling's code. The sequences share a block, since nobody reads what
// they compute. Slot 0 held the prompt. `proposes`: there is a draft model.
v1::StepRequest WidestBatch(int32_t num_seqs, int32_t vocab_size, bool proposes) {
  v1::StepRequest request;
  request.add_freed_slots(0);
  for (int32_t slot = 0; slot < num_seqs; ++slot) {
    AddSequence(slot, 1, &request)->add_block_ids(1);
    if (proposes) request.mutable_sequences(slot)->set_num_proposals(1);
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

}  // namespace

absl::Status ModelRunnerImpl::Profile() {
  // On a host everything that a step touches is in regions that are resident since they were mapped; a short
  // step only warms the code. A device allocates and loads lazily, so there the largest batches run.
  const bool lazy = device_->kind() != DeviceKind::kCpu;
  const int32_t batch = std::min(options_.max_num_batched_tokens, options_.max_model_len);
  const int32_t num_tokens = lazy ? batch : std::min(batch, 8);
  const int32_t total_blocks = (num_tokens + options_.block_size - 1) / options_.block_size;
  const int32_t num_blocks = static_cast<int32_t>(NumBlocks(total_blocks));
  // First, so that the steps below run as all later steps.
  RETURN_IF_ERROR(tuner_.Run(options_.max_num_batched_tokens, BatchSizes()));
  RETURN_IF_ERROR(AllocateBlocks(num_blocks, num_blocks));
  absl::Status status = Execute(LongestPrompt(num_tokens, total_blocks)).status();
  if (status.ok() && lazy) {
    const int32_t num_seqs = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
    status = Execute(WidestBatch(num_seqs, config_.vocab_size, state_.limits().max_proposals > 0)).status();
  }
  in_flight_.clear();  // Execute has waited for all of them
  RETURN_IF_ERROR(FreeScratchBlocks());
  return status;
}

absl::Status ModelRunnerImpl::FreeScratchBlocks() {
  state_.Clear();
  state_.SetNumBlocks(0);
  context_.kv_cache.clear();
  if (draft_model_ != nullptr) RETURN_IF_ERROR(draft_model_->FreeBlocks());
  void* scratch = kv_region_;
  kv_region_ = nullptr;
  return allocator_->Free(scratch);
}

std::vector<int32_t> ModelRunnerImpl::BatchSizes() const {
  // The inputs' arrays have room for no larger batch.
  const int32_t largest = std::min(options_.max_num_seqs, options_.max_num_batched_tokens);
  std::vector<int32_t> sizes =
      options_.graph_sizes.empty() ? DefaultGraphSizes(largest) : options_.graph_sizes;
  std::erase_if(sizes, [largest](int32_t size) { return size < 1 || size > largest; });
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<int32_t> ModelRunnerImpl::GraphSizes() const {
  const bool queues_all = communicator_->world_size() == 1 || communicator_->stream_ordered();
  if (options_.enforce_eager || !device_->asynchronous() || !queues_all) return {};
  return BatchSizes();
}

absl::StatusOr<GraphReport> ModelRunnerImpl::CaptureGraphs() {
  const std::vector<int32_t> sizes = GraphSizes();
  if (sizes.empty()) return GraphReport{};
  const auto prepare = [this](int32_t size, bool runs) -> absl::Status {
    if (runs) inputs_.Turn();
    arrays_.Build(state_, size);
    if (runs) inputs_.Upload(inputs_.bytes());
    return absl::OkStatus();
  };
  const auto queue = [this] { return model_->Forward(arrays_.QueueInputs()); };
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(graphs_.Capture(device_, sizes, graphs_warm_, prepare, queue));
  graphs_warm_ = true;
  const GraphReport report = {graphs_.count(), SecondsSince(start)};
  LogInfo("captured {} decode graphs in {:.2f} s", report.count, report.seconds);
  return report;
}

// All ranks come here at the same step, with an empty batch: the first one of an epoch.
absl::Status ModelRunnerImpl::CaptureDeferredGraphs() {
  if (!graphs_deferred_) return absl::OkStatus();
  graphs_deferred_ = false;
  // A rank that joined a group which profiled long ago has not measured its matrix products yet.
  RETURN_IF_ERROR(tuner_.Run(options_.max_num_batched_tokens, BatchSizes()));
  return CaptureGraphs().status();
}

// Captures every graph, and keeps all of them at once: how much a graph takes depends on its kernels and on
// what is left of the driver's last allocation, so a few of them would say little about the rest.
absl::StatusOr<GraphReport> ModelRunnerImpl::ProfileGraphs() {
  if (GraphSizes().empty()) return GraphReport{};
  // A call that frees memory may wait for the whole device. Without the barrier, a rank that still frees
  // could wait for a rank on the same device that is ahead and waits for it in a collective.
  RETURN_IF_ERROR(communicator_->Barrier());
  RETURN_IF_ERROR(AllocateBlocks(2, 2));  // graphs keep the addresses, but these are never launched
  absl::StatusOr<GraphReport> report = CaptureGraphs();
  RETURN_IF_ERROR(FreeScratchBlocks());
  return report;
}

}  // namespace somnus
