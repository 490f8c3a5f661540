// Weights that are in another process's memory on the GPU: a trainer exports it by CUDA IPC, a rank copies
// from it. Every CUDA call is made in a child, since a fork does not survive CUDA.

#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/comm/rank_processes.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/model/weight_chunks.h"

// The emulator's runtime is in it; with the toolkit's, which is global, no header of this test declares it.
namespace somnus::SOMNUS_CUDA_NAMESPACE {}

namespace somnus::cuda_test {
namespace {

using namespace ::somnus::SOMNUS_CUDA_NAMESPACE;

constexpr int kNoGpu = 77;
constexpr size_t kPage = size_t{2} << 20;  // the emulator exports whole ones

// Where the tensors are in the trainer's one allocation.
struct Placed {
  const TensorInfo* tensor = nullptr;
  int64_t offset = 0;
};
std::vector<Placed> Place(const Checkpoint& checkpoint, size_t* bytes) {
  std::vector<Placed> placed;
  int64_t offset = 256;
  const std::unique_ptr<MemoryCheckpoint> all = MemoryCheckpoint::Create(checkpoint.config());
  for (const TensorInfo* known : all->Tensors()) {
    const TensorInfo* const tensor = checkpoint.Find(known->name);
    placed.push_back({tensor, offset});
    offset += static_cast<int64_t>((tensor->bytes + 255) / 256 * 256);
  }
  *bytes = (static_cast<size_t>(offset) + kPage - 1) / kPage * kPage;
  return placed;
}

int Export(const Checkpoint& checkpoint, int handle_pipe, int end_pipe) {
  if (MakeCudaDevice() == nullptr) return kNoGpu;
  size_t bytes = 0;
  const std::vector<Placed> placed = Place(checkpoint, &bytes);
  char* memory = nullptr;
  cudaIpcMemHandle_t handle;
  bool good = cudaMalloc(&memory, bytes) == cudaSuccess;
  for (const Placed& place : placed) {
    good = good && cudaMemcpy(memory + place.offset, place.tensor->data, place.tensor->bytes,
                              cudaMemcpyHostToDevice) == cudaSuccess;
  }
  good = good && cudaIpcGetMemHandle(&handle, memory) == cudaSuccess;
  good = good && write(handle_pipe, &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
  char end;
  return good && read(end_pipe, &end, 1) == 0 ? 0 : 1;
}

int Import(const Checkpoint& checkpoint, int handle_pipe) {
  const std::unique_ptr<Device> device = MakeCudaDevice();
  if (device == nullptr) return kNoGpu;
  std::string handle(sizeof(cudaIpcMemHandle_t), '\0');
  if (read(handle_pipe, handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) return 1;
  size_t bytes = 0;
  std::vector<v1::WeightChunk> chunks;
  for (const Placed& place : Place(checkpoint, &bytes)) {
    v1::WeightChunk& chunk = chunks.emplace_back(ChunksOf(*place.tensor, place.tensor->bytes)[0]);
    chunk.mutable_cuda_memory()->set_handle(handle);
    chunk.mutable_cuda_memory()->set_offset(place.offset);
    chunk.mutable_cuda_memory()->set_bytes(static_cast<int64_t>(place.tensor->bytes));
  }
  for (const RankPart part : {RankPart{0, 1, DataType::kF32}, RankPart{1, 2, DataType::kBF16}}) {
    const auto plan = PlanOf(checkpoint, part, *device);
    if (!plan.ok()) return 2;
    DeviceBuffer loaded(plan->region_bytes()), updated(plan->region_bytes());
    if (!FillByLoad(checkpoint, part, *device, loaded.device<void>()).ok()) return 3;
    const absl::Status filled =
        FillByUpdate(checkpoint.config(), chunks, part, *device, updated.device<void>());
    EXPECT_EQ(filled, absl::OkStatus());
    if (!filled.ok() || loaded.Bytes() != updated.Bytes()) return 4;
  }
  char byte;
  if (!absl::IsInvalidArgument(device->CopyFromProcess("short", 0, 1, &byte))) return 5;
  handle.assign(handle.size(), '\1');
  return absl::IsInvalidArgument(device->CopyFromProcess(handle, 0, 1, &byte)) ? 0 : 6;
}

TEST(ProcessMemory, TensorsOfATrainersProcessAreBitForBitThoseOfALoad) {
  const auto checkpoint = Checkpoint::Open("tests/data/tiny/llama-uneven");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  int handles[2], ends[2];
  ASSERT_EQ(pipe(handles), 0);
  ASSERT_EQ(pipe(ends), 0);
  RankProcesses processes(2, [&](int rank) {
    // So that each learns of the other's end.
    close(rank == 1 ? handles[1] : ends[1]);
    if (rank == 1) return Import(**checkpoint, handles[0]);
    return Export(**checkpoint, handles[1], ends[0]);
  });
  for (const int fd : {handles[0], handles[1], ends[0], ends[1]}) close(fd);
  const int imported = processes.Wait(1), exported = processes.Wait(0);
  if (imported == kNoGpu) GTEST_SKIP() << "there is no GPU";
  EXPECT_EQ(imported, 0);
  EXPECT_EQ(exported, 0);
}

}  // namespace
}  // namespace somnus::cuda_test
