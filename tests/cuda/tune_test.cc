// Which matrix products of a model are measured, and when: before the first step, each once, none afterwards.
#include <gtest/gtest.h>

#include "kernels/cuda/gemm.h"
#include "tests/cuda/gpu_ranks.h"

namespace somnus::cuda_test {
namespace {

using SOMNUS_CUDA_NAMESPACE::AsCuda;
using SOMNUS_CUDA_NAMESPACE::Gemm;

// One rank, and the rank's device to look at.
struct Tuned {
  explicit Tuned(const ModelRunnerOptions& options, const char* model) {
    const MakeRankDevice make = [this](int rank) -> absl::StatusOr<RankDevice> {
      ASSIGN_OR_RETURN(RankDevice made, GpuRanks()(rank));
      device = made.device.get();
      return made;
    };
    auto loaded = RankGroup::Load(std::string("tests/data/tiny/") + model, 1, options, 64, make);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    if (loaded.ok()) group = *std::move(loaded);
  }
  Gemm::Stats stats() const { return AsCuda(*device).gemm()->stats(); }

  Device* device = nullptr;
  std::unique_ptr<RankGroup> group;
};

ModelRunnerOptions Options() {
  ModelRunnerOptions options;
  options.dtype = DataType::kF32;  // beyond eight rows products are the library's
  options.max_num_seqs = 24;
  options.max_num_batched_tokens = 60;
  options.max_model_len = 64;
  options.graph_sizes = {1, 16, 20, 24};
  options.max_tune_time = absl::Hours(24);
  return options;
}

void DecodeTogether(RankGroup& group, int32_t num_seqs) {
  v1::StepRequest request;
  *request.add_samplings() = GreedySampling();
  for (int32_t slot = 0; slot < num_seqs; ++slot) {
    v1::NewSequence* sequence = request.add_new_sequences();
    sequence->set_slot(slot);
    sequence->add_token_ids(slot + 3);
    sequence->set_num_prompt_tokens(1);
    sequence->add_block_ids(1 + slot);
    request.add_sequences()->set_slot(slot);
    request.mutable_sequences(slot)->set_num_tokens(1);
  }
  const auto reply = group.Execute(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->tokens_size(), num_seqs);
  v1::StepRequest done;
  for (int32_t slot = 0; slot < num_seqs; ++slot) done.add_freed_slots(slot);
  EXPECT_TRUE(group.Execute(done).ok());
}

// Four products of a layer at 60 rows, at 24 (of which 20 are a neighbour) and at 16, and the head at the
// last two.
constexpr int64_t kChoices = 4 * 3 + 2;

TEST(Tune, EveryProductOnceBeforeTheFirstStep) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  for (const char* model : {"llama-uneven", "opt"}) {
    Tuned tuned(Options(), model);
    ASSERT_NE(tuned.group, nullptr);
    EXPECT_EQ(tuned.stats().measured, kChoices) << model;
    EXPECT_EQ(tuned.stats().unmeasured, 0) << model << ": graphs or profiling ran what was not measured";
    for (const int32_t num_seqs : {24, 16, 10, 3}) DecodeTogether(*tuned.group, num_seqs);
    EXPECT_EQ(tuned.stats().measured, kChoices) << model;
  }
}

TEST(Tune, WithoutGraphsToo) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = Options();
  options.enforce_eager = true;
  Tuned tuned(options, "llama-uneven");
  ASSERT_NE(tuned.group, nullptr);
  EXPECT_EQ(tuned.stats().measured, kChoices);
}

TEST(Tune, NoTimeNoMeasurement) {
  SOMNUS_SKIP_WITHOUT_GPU(MakeCudaDevice());
  ModelRunnerOptions options = Options();
  options.max_tune_time = absl::ZeroDuration();
  Tuned tuned(options, "llama-uneven");
  ASSERT_NE(tuned.group, nullptr);
  EXPECT_EQ(tuned.stats().measured, 0);
  EXPECT_GT(tuned.stats().unmeasured, 0);
  DecodeTogether(*tuned.group, 24);
}

}  // namespace
}  // namespace somnus::cuda_test
