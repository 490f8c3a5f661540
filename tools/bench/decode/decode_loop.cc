#include "tools/bench/decode/decode_loop.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <utility>

#include "allocator/host_vmm_driver.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int32_t kBlockSize = 16;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void AddCalls(const HostCalls& before, const HostCalls& after, HostCalls* sum) {
  sum->waits += after.waits - before.waits;
  sum->copies_to_device += after.copies_to_device - before.copies_to_device;
  sum->copies_to_host += after.copies_to_host - before.copies_to_host;
  sum->graph_launches += after.graph_launches - before.graph_launches;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeLoop>> DecodeLoop::Load(const DecodeLoopOptions& options) {
  CpuDeviceOptions cpu;
  cpu.num_threads = options.threads;
  cpu.first_cpu = 0;
  LoopDevice device;
  device.driver = MakeHostVmmDriver();
  ASSIGN_OR_RETURN(device.device, Device::CreateCpu(cpu));
  return Load(options, std::move(device));
}

absl::StatusOr<std::unique_ptr<DecodeLoop>> DecodeLoop::Load(const DecodeLoopOptions& options,
                                                             LoopDevice device) {
  const auto start = std::chrono::steady_clock::now();
  auto loop = std::make_unique<DecodeLoop>();
  loop->options_ = options;
  ASSIGN_OR_RETURN(loop->checkpoint_, Checkpoint::Open(options.model, options.load_format));
  loop->driver_ = std::move(device.driver);
  loop->device_ = std::move(device.device);
  loop->allocator_ = SleepableAllocator::Create(loop->driver_.get());
  loop->communicator_ = MakeSingleCommunicator();
  ModelRunnerOptions runner;
  runner.dtype = options.dtype;
  runner.dequantize = options.dequantize;
  runner.quantize = options.quantize;
  runner.kv_cache_dtype = options.kv_cache_dtype;
  runner.max_num_seqs = options.max_batch;
  runner.max_num_batched_tokens = options.max_step_tokens;
  runner.max_model_len = options.max_len;
  runner.block_size = kBlockSize;
  runner.enforce_eager = options.enforce_eager;
  ASSIGN_OR_RETURN(loop->runner_,
                   ModelRunner::Load(*loop->checkpoint_, runner, loop->device_.get(),
                                     loop->communicator_.get(), loop->allocator_.get(), nullptr));
  // As the worker does: matrix products are measured, and graphs are captured here and again over the KV
  // cache.
  if (loop->device_->kind() == DeviceKind::kCuda) {
    RETURN_IF_ERROR(loop->runner_->Profile());
    ASSIGN_OR_RETURN(const int64_t before, loop->driver_->AvailableBytes());
    ASSIGN_OR_RETURN(loop->graphs_, loop->runner_->ProfileGraphs());
    ASSIGN_OR_RETURN(const int64_t after, loop->driver_->AvailableBytes());
    loop->graph_bytes_ = before - after;
  }
  RETURN_IF_ERROR(loop->AllocateKvCache());
  loop->weights_bytes_ = loop->allocator_->ResidentBytes()["weights"];
  loop->work_ = WorkOf(*loop->checkpoint_);
  loop->work_.weights_bytes = static_cast<double>(loop->weights_bytes_);
  loop->work_.kv_token_bytes = static_cast<double>(loop->runner_->kv_block_bytes()) / kBlockSize;
  loop->load_seconds_ = SecondsSince(start);
  return loop;
}

absl::Status DecodeLoop::AllocateKvCache() {
  int64_t blocks =
      1 + (options_.kv_blocks > 0 ? options_.kv_blocks : BlocksFor(options_.max_batch, options_.max_len));
  ASSIGN_OR_RETURN(const int64_t available, driver_->AvailableBytes());
  const auto blocks_in = [&](double share) {
    return static_cast<int64_t>(static_cast<double>(available) * std::min(share, 1.0)) /
           runner_->kv_block_bytes();
  };
  blocks = std::max(blocks, blocks_in(options_.kv_share));
  if (options_.max_kv_share > 0) blocks = std::clamp<int64_t>(blocks_in(options_.max_kv_share), 2, blocks);
  num_blocks_ = std::min<int64_t>(blocks, INT32_MAX);
  kv_cache_bytes_ = num_blocks_ * runner_->kv_block_bytes();
  const auto num_blocks = static_cast<int32_t>(num_blocks_);
  return runner_->AllocateKvCache(num_blocks, num_blocks, /*defer_graphs=*/false);
}

int64_t DecodeLoop::BlocksFor(int32_t batch, int32_t len) {
  return int64_t{batch} * ((len + kBlockSize - 1) / kBlockSize);
}

bool DecodeLoop::multiplies_bytes() const {
  return options_.quantize == DataType::kQ8_0 || options_.quantize == DataType::kQ4_1 ||
         (!options_.dequantize && work_.stored_as_bytes);
}

absl::Status DecodeLoop::Prefill(int32_t batch, int32_t prompt_tokens, int32_t new_tokens) {
  std::mt19937 random(1);
  const int32_t vocab = checkpoint_->config().vocab_size;
  const auto blocks_per_seq = static_cast<int32_t>(BlocksFor(1, prompt_tokens + new_tokens));
  v1::StepRequest request;
  for (int32_t slot = 0; slot < last_batch_; ++slot) request.add_freed_slots(slot);
  last_batch_ = batch;
  for (int32_t slot = 0; slot < batch; ++slot) {
    v1::NewSequence* sequence = request.add_new_sequences();
    sequence->set_slot(slot);
    sequence->set_num_prompt_tokens(prompt_tokens);
    for (int32_t i = 0; i < prompt_tokens; ++i)
      sequence->add_token_ids(static_cast<int32_t>(random() % vocab));
    for (int32_t i = 0; i < blocks_per_seq; ++i) sequence->add_block_ids(1 + slot * blocks_per_seq + i);
  }
  v1::StepSampling* sampling = request.add_samplings();
  sampling->set_top_p(1);
  sampling->set_repetition_penalty(1);
  sampling->set_num_logprobs(-1);
  sampling->set_num_prompt_logprobs(-1);
  int32_t slot = 0, done = 0;  // of the prompts, sequence by sequence
  while (slot < batch) {
    int32_t budget = options_.max_step_tokens;
    while (budget > 0 && slot < batch) {
      v1::ScheduledSequence* sequence = request.add_sequences();
      const int32_t n = std::min(budget, prompt_tokens - done);
      sequence->set_slot(slot);
      sequence->set_num_tokens(n);
      budget -= n;
      done += n;
      if (done == prompt_tokens) {
        ++slot;
        done = 0;
      }
    }
    request.set_step_id(++step_id_);
    RETURN_IF_ERROR(runner_->Execute(request).status());
    request.Clear();
  }
  return absl::OkStatus();
}

// As the worker does: a step is launched before the reply to the previous step is read.
absl::Status DecodeLoop::Decode(int32_t batch, int32_t new_tokens, HostCalls* launching) {
  v1::StepRequest request;
  for (int32_t slot = 0; slot < batch; ++slot) {
    request.add_sequences()->set_slot(slot);
    request.mutable_sequences(slot)->set_num_tokens(1);
  }
  std::unique_ptr<PendingStep> last;
  for (int32_t step = 0; step < new_tokens; ++step) {
    request.set_step_id(++step_id_);
    const HostCalls before = device_->CallsOfThisThread();
    ASSIGN_OR_RETURN(std::unique_ptr<PendingStep> next, runner_->Launch(request));
    AddCalls(before, device_->CallsOfThisThread(), launching);
    if (last != nullptr) RETURN_IF_ERROR(last->Wait().status());
    last = std::move(next);
  }
  return last == nullptr ? absl::OkStatus() : last->Wait().status();
}

absl::StatusOr<double> DecodeLoop::ReloadSeconds(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(runner_->ReloadWeights(*checkpoint, nullptr));
  RETURN_IF_ERROR(device_->Synchronize());
  return SecondsSince(start);
}

absl::StatusOr<LoopSample> DecodeLoop::Run(int32_t batch, int32_t prompt_tokens, int32_t new_tokens) {
  if (batch < 1 || batch > options_.max_batch || prompt_tokens < 1 ||
      prompt_tokens + new_tokens > options_.max_len) {
    return absl::InvalidArgumentError("batch or lengths are larger than the loop was loaded for");
  }
  if (!Fits(batch, prompt_tokens + new_tokens))
    return absl::ResourceExhaustedError("the KV cache has no room for these sequences");
  LoopSample sample;
  auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(Prefill(batch, prompt_tokens, new_tokens));
  sample.prefill_seconds = SecondsSince(start);
  sample.prompt_tokens = static_cast<int64_t>(batch) * prompt_tokens;

  start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(Decode(batch, new_tokens, &sample.launching));
  sample.decode_seconds = SecondsSince(start);
  sample.decode_steps = new_tokens;
  sample.new_tokens = static_cast<int64_t>(batch) * new_tokens;
  return sample;
}

}  // namespace somnus
