// The thread that launches a decode step of a running batch makes a copy to the device, launches a graph,
// makes a copy back, and never waits. Another thread makes the replies, as in the worker.
#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "tests/cuda/gpu_ranks.h"
#ifdef SOMNUS_CUDA_EMULATOR
#include "kernels/emulator/host_calls.h"
#endif

namespace somnus::cuda_test {
namespace {

constexpr int kWarmSteps = 4;
constexpr int kSteps = 12;  // in which sequences need new blocks
constexpr int kSeqs = 3;

// Waits for steps in their order on a separate thread.
class ReplyReader {
 public:
  ReplyReader() : thread_([this] { Read(); }) {}
  ~ReplyReader() {
    {
      absl::MutexLock lock(&mu_);
      done_ = true;
    }
    thread_.join();
  }
  void Push(std::unique_ptr<PendingStep> step) {
    absl::MutexLock lock(&mu_);
    steps_.push_back(std::move(step));
  }
  // Waits until no more than one step is unread, as the coordinator does before the next step.
  void AwaitRoom() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](ReplyReader* self) { return self->steps_.size() <= 1; }, this));
  }
  int tokens() {
    absl::MutexLock lock(&mu_);
    return tokens_;
  }

 private:
  void Read() {
    for (;;) {
      PendingStep* step;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(
            +[](ReplyReader* self) { return self->done_ || !self->steps_.empty(); }, this));
        if (steps_.empty()) return;
        step = steps_.front().get();
      }
      const auto reply = step->Wait();
      EXPECT_TRUE(reply.ok()) << reply.status();
      absl::MutexLock lock(&mu_);
      if (reply.ok()) tokens_ += reply->tokens_size();
      steps_.pop_front();
    }
  }

  absl::Mutex mu_;
  std::deque<std::unique_ptr<PendingStep>> steps_;
  int tokens_ = 0;
  bool done_ = false;
  std::thread thread_;  // last
};

struct Cost {
  HostCalls device;  // as the device counts
#ifdef SOMNUS_CUDA_EMULATOR
  cuda_emulated::emulator::HostCalls runtime;  // as the runtime does for every caller
#endif
};

Cost CostSoFar(const Device& device) {
  Cost cost;
  cost.device = device.CallsOfThisThread();
#ifdef SOMNUS_CUDA_EMULATOR
  cost.runtime = cuda_emulated::emulator::CallsOfThisThread();
#endif
  return cost;
}

v1::StepRequest FirstStep(const v1::StepSampling& sampling) {
  v1::StepRequest request;
  *request.add_samplings() = sampling;
  for (int slot = 0; slot < kSeqs; ++slot) {
    v1::NewSequence* sequence = request.add_new_sequences();
    sequence->set_slot(slot);
    for (int i = 0; i <= 3 * slot; ++i) sequence->add_token_ids(5 + i);
    sequence->set_num_prompt_tokens(sequence->token_ids_size());
    sequence->add_block_ids(1 + slot);
    sequence->set_seed(7);
    v1::ScheduledSequence* scheduled = request.add_sequences();
    scheduled->set_slot(slot);
    scheduled->set_num_tokens(sequence->token_ids_size());
  }
  return request;
}

// Each sequence gets another block once it needs one.
v1::StepRequest DecodeStep(int step) {
  v1::StepRequest request;
  for (int slot = 0; slot < kSeqs; ++slot) {
    v1::ScheduledSequence* scheduled = request.add_sequences();
    scheduled->set_slot(slot);
    scheduled->set_num_tokens(1);
    if (3 * slot + 1 + step == 16) scheduled->add_new_block_ids(1 + kSeqs + slot);
  }
  return request;
}

// The cost of kSteps steps on the calling thread.
Cost SteadyCost(ModelRunner& runner, const Device& device, const v1::StepSampling& sampling, int* tokens) {
  ReplyReader reader;
  const auto launch = [&](const v1::StepRequest& request) {
    reader.AwaitRoom();
    auto step = runner.Launch(request);
    ASSERT_TRUE(step.ok()) << step.status();
    reader.Push(*std::move(step));
  };
  launch(FirstStep(sampling));
  for (int step = 0; step < kWarmSteps; ++step) launch(DecodeStep(step));
  const Cost before = CostSoFar(device);
  for (int step = kWarmSteps; step < kWarmSteps + kSteps; ++step) launch(DecodeStep(step));
  Cost cost = CostSoFar(device);
  const auto subtract = [](auto* calls, const auto& from) {
    calls->waits -= from.waits;
    calls->copies_to_device -= from.copies_to_device;
    calls->copies_to_host -= from.copies_to_host;
  };
  subtract(&cost.device, before.device);
  cost.device.graph_launches -= before.device.graph_launches;
#ifdef SOMNUS_CUDA_EMULATOR
  subtract(&cost.runtime, before.runtime);
#endif
  v1::StepRequest end;
  for (int slot = 0; slot < kSeqs; ++slot) end.add_freed_slots(slot);
  launch(end);
  reader.AwaitRoom();
  *tokens = reader.tokens();
  return cost;
}

ModelRunnerOptions Options() {
  ModelRunnerOptions options;
  options.dtype = DataType::kBF16;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 32;
  options.max_model_len = 64;
  return options;
}

// `copies`: to the device in each step; one copy carries all that every step needs.
void ExpectSteady(const Cost& cost, int copies = 1) {
  EXPECT_EQ(cost.device.waits, 0);
  EXPECT_EQ(cost.device.copies_to_device, copies * kSteps);
  EXPECT_EQ(cost.device.copies_to_host, kSteps);
  EXPECT_EQ(cost.device.graph_launches, kSteps);
#ifdef SOMNUS_CUDA_EMULATOR
  EXPECT_EQ(cost.runtime.waits, 0);
  EXPECT_EQ(cost.runtime.copies_to_device, copies * kSteps);
  EXPECT_EQ(cost.runtime.copies_to_host, kSteps);
#endif
}

// A group of ranks, which own their devices.
struct Ranks {
  explicit Ranks(int world_size) : devices(world_size) {
    const MakeRankDevice make = [this](int rank) -> absl::StatusOr<RankDevice> {
      ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
      devices[rank] = made.device.get();
      return made;
    };
    auto loaded = RankGroup::Load("tests/data/tiny/llama-uneven", world_size, Options(), 16, make);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) group = *std::move(loaded);
  }
  std::vector<Device*> devices;
  std::unique_ptr<RankGroup> group;
};

v1::StepSampling Sampled() {
  v1::StepSampling sampling = GreedySampling();
  sampling.set_temperature(0.9f);
  sampling.set_top_k(20);
  sampling.set_top_p(0.9f);
  sampling.set_min_p(0.01f);
  sampling.set_repetition_penalty(1.1f);
  sampling.set_frequency_penalty(0.2f);
  sampling.set_num_logprobs(2);
  return sampling;
}

TEST(SteadyState, TheRunnerNeverWaits) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  Ranks ranks(1);
  ASSERT_NE(ranks.group, nullptr);
  for (const v1::StepSampling& sampling : {GreedySampling(), Sampled()}) {
    int tokens = 0;
    const Cost cost = SteadyCost(ranks.group->runner(0), *ranks.devices[0], sampling, &tokens);
    ExpectSteady(cost);
    EXPECT_GE(tokens, kSeqs * (kSteps + kWarmSteps)) << "the steps did nothing";
  }
}

// Data that only some requests need is copied separately, and adds no wait.
TEST(SteadyState, NorForRequestsThatChangeLogits) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  Ranks ranks(1);
  ASSERT_NE(ranks.group, nullptr);
  v1::StepSampling sampling = Sampled();
  (*sampling.mutable_logit_bias())[7] = 2;
  int tokens = 0;
  ExpectSteady(SteadyCost(ranks.group->runner(0), *ranks.devices[0], sampling, &tokens), 2);
}

TEST(SteadyState, NorAnyOfTwoRanks) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  Ranks ranks(2);
  ASSERT_NE(ranks.group, nullptr);
  std::vector<Cost> costs(2);
  std::vector<std::thread> threads;
  for (int rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      int tokens = 0;
      costs[rank] = SteadyCost(ranks.group->runner(rank), *ranks.devices[rank], GreedySampling(), &tokens);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Cost& cost : costs) ExpectSteady(cost);
}

}  // namespace
}  // namespace somnus::cuda_test
