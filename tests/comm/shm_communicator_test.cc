// Sums, gathers and barriers among real processes: bitwise the rank-order result, for any size and group.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "absl/time/clock.h"
#include "tests/comm/rank_processes.h"
#include "tests/fakes/unique_name.h"
#include "tests/kernels/kernel_test_util.h"
#include "worker/comm/communicator.h"

namespace somnus {
namespace {

GroupOptions Options(const std::string& group, int rank, int world_size) {
  GroupOptions options;
  options.group_name = group;
  options.rank = rank;
  options.world_size = world_size;
  options.buffer_bytes = 1 << 16;
  options.spin = world_size <= 2;
  options.collective_timeout = absl::Seconds(60);
  return options;
}

// Rank r's input of call `call`: wide in magnitude, so that every order of summation gives different bits.
std::vector<float> Input(int call, int rank, int64_t count) {
  std::mt19937 random(call * 64 + rank);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), static_cast<int>(random() % 24));
  return values;
}

std::vector<float> RankOrderSum(int call, int world_size, int64_t count) {
  std::vector<float> sum = Input(call, 0, count);
  for (int r = 1; r < world_size; ++r) {
    const std::vector<float> next = Input(call, r, count);
    for (int64_t i = 0; i < count; ++i) sum[i] += next[i];
  }
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Sizes around every boundary: zero, a single element, odd, one-shot's end, a piece's end, several pieces.
std::vector<int64_t> Sizes(int seed) {
  std::vector<int64_t> sizes = {0, 1, 2, 7, 576, 1023, 1024, 1025, 16383, 16384, 16385, 40000, 50001};
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) sizes.push_back(random() % 3000);
  return sizes;
}

// The 16-bit types: inputs of the type are added in f32 in rank order, and the sum is rounded once.
std::vector<uint16_t> HalfInput(DataType type, int call, int rank, int64_t count) {
  std::vector<uint16_t> bits;
  for (const float x : Input(call, rank, count)) {
    bits.push_back(type == DataType::kBF16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(std::ldexp(x, -12)));
  }
  return bits;
}

std::vector<uint16_t> HalfSum(DataType type, int call, int world_size, int64_t count) {
  const bool bf16 = type == DataType::kBF16;
  std::vector<float> sum(count);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<uint16_t> next = HalfInput(type, call, r, count);
    for (int64_t i = 0; i < count; ++i) {
      const float x = bf16 ? std::bit_cast<float>(uint32_t{next[i]} << 16) : kernel_test::F16ToFloat(next[i]);
      sum[i] = r == 0 ? x : sum[i] + x;
    }
  }
  std::vector<uint16_t> rounded;
  for (const float x : sum) rounded.push_back(bf16 ? kernel_test::Bf16Of(x) : kernel_test::F16Of(x));
  return rounded;
}

int RunHalfTypes(const GroupOptions& options) {
  auto made = MakeShmCommunicator(options);
  if (!made.ok()) return 10;
  int call = 0;
  for (const DataType type : {DataType::kBF16, DataType::kF16}) {
    for (const int64_t count : {0, 1, 7, 1025, 32768, 32769, 70001}) {
      ++call;
      std::vector<uint16_t> data = HalfInput(type, call, options.rank, count);
      if (!(*made)->AllReduceSum(data.data(), count, type).ok()) return 11;
      if (data != HalfSum(type, call, options.world_size, count)) return type == DataType::kBF16 ? 12 : 13;
    }
  }
  return 0;
}

// The calls of a rank in the test of all calls; the exit code says which result differed.
int RunAllCalls(const GroupOptions& options) {
  auto made = MakeShmCommunicator(options);
  if (!made.ok()) return 10;
  Communicator& comm = **made;
  if (comm.rank() != options.rank || comm.world_size() != options.world_size) return 11;
  int call = 0;
  for (const int64_t count : Sizes(options.world_size)) {
    ++call;
    std::vector<float> data = Input(call, options.rank, count);
    if (!comm.AllReduceSum(data.data(), count, DataType::kF32).ok()) return 12;
    if (!SameBits(data, RankOrderSum(call, options.world_size, count))) return 13;
    const std::vector<float> mine = Input(call, options.rank, count);
    std::vector<float> all(count * options.world_size);
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    if (!comm.AllGather(mine.data(), bytes, all.data()).ok()) return 14;
    for (int r = 0; r < options.world_size; ++r) {
      const std::vector<float> part(all.begin() + r * count, all.begin() + (r + 1) * count);
      if (!SameBits(part, Input(call, r, count))) return 15;
    }
    if (!comm.Barrier().ok()) return 16;
  }
  return 0;
}

class ShmEveryWorldSize : public testing::TestWithParam<int> {};

TEST_P(ShmEveryWorldSize, ResultsAreBitwiseInRankOrder) {
  const std::string group = UniqueName();
  const int world_size = GetParam();
  RankProcesses ranks(world_size, [&](int r) { return RunAllCalls(Options(group, r, world_size)); });
  for (int r = 0; r < world_size; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}
TEST_P(ShmEveryWorldSize, HalfTypesAreRoundedOnce) {
  const std::string group = UniqueName();
  const int world_size = GetParam();
  RankProcesses ranks(world_size, [&](int r) { return RunHalfTypes(Options(group, r, world_size)); });
  for (int r = 0; r < world_size; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}
INSTANTIATE_TEST_SUITE_P(Comm, ShmEveryWorldSize, testing::Values(1, 2, 3, 4, 5, 8));

TEST(ShmCommunicator, MoreRanksThanCpusMakeProgressWithSpin) {
  const std::string group = UniqueName();
  RankProcesses ranks(4, [&](int r) {
    GroupOptions options = Options(group, r, 4);
    options.spin = true;
    auto comm = MakeShmCommunicator(options);
    if (!comm.ok()) return 1;
    float one = 1;
    for (int i = 0; i < 200; ++i) {
      one = 1;
      if (!(*comm)->AllReduceSum(&one, 1, DataType::kF32).ok() || one != 4) return 2;
    }
    return 0;
  });
  EXPECT_TRUE(ranks.AllGood());
}

TEST(ShmCommunicator, IdleRanksBurnNothing) {
  const std::string group = UniqueName();
  RankProcesses ranks(2, [&](int r) {
    auto comm = MakeShmCommunicator(Options(group, r, 2));
    if (!comm.ok()) return 1;
    if (r == 1) {
      absl::SleepFor(absl::Milliseconds(1500));
      return (*comm)->Barrier().ok() ? 0 : 2;
    }
    if (!(*comm)->Barrier().ok()) return 3;
    timespec used;  // of a wait that took 1.5 s of wall time
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec == 0 && used.tv_nsec < 300'000'000 ? 0 : 4;
  });
  EXPECT_TRUE(ranks.AllGood());
}

TEST(ShmCommunicator, NothingIsLeftBehind) {
  const auto list = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) names.insert(entry.path());
    return names;
  };
  const std::set<std::string> before = list();
  const std::string group = UniqueName();
  std::set<std::string> during;
  {
    RankProcesses ranks(2, [&](int r) {
      auto comm = MakeShmCommunicator(Options(group, r, 2));
      if (!comm.ok() || !(*comm)->Barrier().ok()) return 1;
      absl::SleepFor(absl::Seconds(30));
      return 0;
    });
    absl::SleepFor(absl::Milliseconds(300));
    during = list();
  }  // both are killed while attached
  for (const std::string& name : during) {
    EXPECT_TRUE(before.count(name) || name.find(group) == std::string::npos) << name;
  }
  // The same name can be used at once by a new group.
  RankProcesses again(2, [&](int r) { return RunAllCalls(Options(group, r, 2)); });
  EXPECT_TRUE(again.AllGood());
}

TEST(SingleCommunicator, IsANoOp) {
  auto comm = MakeSingleCommunicator();
  float data[2] = {3, 4}, copy[2] = {};
  EXPECT_TRUE(comm->AllReduceSum(data, 2, DataType::kF32).ok());
  EXPECT_TRUE(comm->AllGather(data, sizeof(data), copy).ok());
  EXPECT_TRUE(comm->Barrier().ok());
  EXPECT_EQ(data[0], 3);
  EXPECT_EQ(copy[1], 4);
  EXPECT_EQ(comm->world_size(), 1);
}

}  // namespace
}  // namespace somnus
