// A worker moves to its placement, and tells the place.

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/cpus.h"
#include "base/numa.h"
#include "tests/worker/fake_parts.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// A host with two nodes, of which the second has all CPUs, and no memory that this kernel could place.
TEST(WorkerPlacementTest, RunsOnTheNodeThatItWasToldAndSaysSo) {
  const std::vector<int> all = AllowedCpus();
  FakeModelControl control;
  WorkerParts parts = FakeParts(&control);
  std::vector<int> memory_nodes = {-1};
  parts.open_memory = [open = parts.open_memory, &memory_nodes](const WorkerOptions& options, int threads) {
    memory_nodes = options.memory_nodes;
    return open(options, threads);
  };
  parts.numa_nodes = [&all] { return std::vector<NumaNode>{{0, {}}, {1023, all}}; };
  Worker worker({.num_threads = 1}, parts);
  ASSERT_TRUE(BeginEpoch(worker, 1).ok());
  EXPECT_EQ(worker.GetStatus().numa(), "");
  v1::LoadModelRequest request = LoadRequest();
  request.set_numa("1023");
  ASSERT_TRUE(worker.LoadModel(request, [](int64_t, int64_t) {}).ok());
  EXPECT_EQ(worker.GetStatus().numa(),
            absl::StrCat("node 1023, CPUs ", CpuListText(all), ", memory not placed"));
  EXPECT_TRUE(memory_nodes.empty()) << "the kernel refuses that node";
}

TEST(WorkerPlacementTest, ANodeThatIsNotThereFailsTheLoad) {
  FakeModelControl control;
  Worker worker({.num_threads = 1}, FakeParts(&control));
  ASSERT_TRUE(BeginEpoch(worker, 1).ok());
  v1::LoadModelRequest request = LoadRequest();
  request.set_numa("3");
  EXPECT_TRUE(absl::IsInvalidArgument(worker.LoadModel(request, [](int64_t, int64_t) {}).status()));
}

}  // namespace
}  // namespace somnus
