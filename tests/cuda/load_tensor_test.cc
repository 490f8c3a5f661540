// A region on the device that an update has filled, tensor by tensor, beside one that a load has filled.

#include "tests/cuda/cuda_test_util.h"
#include "tests/model/weight_chunks.h"

namespace somnus::cuda_test {
namespace {

TEST(LoadTensor, TensorByTensorIsBitForBitTheLoadOfAll) {
  for (const char* model : {"llama-uneven", "qwen3"}) {
    const auto checkpoint = Checkpoint::Open(std::string("tests/data/tiny/") + model);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const RankPart part : {RankPart{0, 1, DataType::kF32}, RankPart{0, 2, DataType::kBF16},
                                RankPart{1, 2, DataType::kBF16}, RankPart{1, 2, DataType::kF16}}) {
      const std::unique_ptr<Device> device = MakeCudaDevice();
      SOMNUS_SKIP_WITHOUT_GPU(device);
      const auto plan = PlanOf(**checkpoint, part, *device);
      ASSERT_TRUE(plan.ok()) << plan.status();
      DeviceBuffer loaded(plan->region_bytes()), updated(plan->region_bytes());
      ASSERT_EQ(FillByLoad(**checkpoint, part, *device, loaded.device<void>()), absl::OkStatus());
      ASSERT_EQ(FillByUpdate((*checkpoint)->config(), ChunksOf(**checkpoint, 1000), part, *device,
                             updated.device<void>()),
                absl::OkStatus());
      EXPECT_TRUE(loaded.Bytes() == updated.Bytes())
          << model << ", rank " << part.rank << " of " << part.world_size;
    }
  }
}

}  // namespace
}  // namespace somnus::cuda_test
