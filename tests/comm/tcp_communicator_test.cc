// Sums, gathers and barriers over TCP among real processes: bitwise the results of shared memory.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "tests/comm/tcp_group.h"

namespace somnus {
namespace {

// Rank r's input of call `call`: wide in magnitude, so that every order of summation gives different bits; as
// a 16-bit type the upper or lower halves.
std::vector<char> Input(int call, int rank, int64_t count, DataType type) {
  std::mt19937 random(call * 64 + rank);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<char> bytes(count * SizeOf(type));
  for (int64_t i = 0; i < count; ++i) {
    const float x = std::ldexp(mantissa(random), static_cast<int>(random() % 24) - 12);
    const _Float16 half = static_cast<_Float16>(x);
    const char* const from = type == DataType::kF32    ? reinterpret_cast<const char*>(&x)
                             : type == DataType::kBF16 ? reinterpret_cast<const char*>(&x) + 2
                                                       : reinterpret_cast<const char*>(&half);
    memcpy(bytes.data() + i * SizeOf(type), from, SizeOf(type));
  }
  return bytes;
}

// Around every boundary: zero, a single element, odd, one-shot's end, a piece's end, several pieces.
constexpr int64_t kCounts[] = {0, 1, 2, 7, 576, 1023, 16383, 16384, 16385, 32767, 32768, 32769, 200003};

// Exit code 0: every sum is bit for bit that of shared memory, and every gather is in rank order.
int CompareWithSharedMemory(TcpGroup& group, int rank) {
  GroupOptions shm_options;
  shm_options.group_name = group.options().group_name;
  shm_options.rank = rank;
  shm_options.world_size = group.options().world_size;
  shm_options.spin = false;
  const int world_size = shm_options.world_size;
  auto tcp = group.Join(rank);
  auto shm = MakeShmCommunicator(shm_options);
  if (!tcp.ok() || !shm.ok()) return 10;
  if ((*tcp)->rank() != rank || (*tcp)->world_size() != world_size) return 11;
  int call = 0;
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF16}) {
    for (const int64_t count : kCounts) {
      std::vector<char> sum = Input(++call, rank, count, type), expected = sum;
      if (!(*tcp)->AllReduceSum(sum.data(), count, type).ok()) return 12;
      if (!(*shm)->AllReduceSum(expected.data(), count, type).ok()) return 13;
      if (sum != expected) return 14;
      const std::vector<char> mine = Input(call, rank, count, type);
      std::vector<char> all(mine.size() * world_size);
      if (!(*tcp)->AllGather(mine.data(), static_cast<int64_t>(mine.size()), all.data()).ok()) return 15;
      for (int r = 0; r < world_size; ++r) {
        const auto begin = all.begin() + static_cast<int64_t>(mine.size()) * r;
        if (std::vector<char>(begin, begin + static_cast<int64_t>(mine.size())) !=
            Input(call, r, count, type))
          return 16;
      }
      if (!(*tcp)->status().ok() || !(*tcp)->Barrier().ok()) return 17;
    }
  }
  return 0;
}

class TcpEveryWorldSize : public testing::TestWithParam<int> {};

TEST_P(TcpEveryWorldSize, ResultsAreBitwiseThoseOfSharedMemory) {
  TcpGroup group(GetParam());
  RankProcesses ranks(GetParam(), [&](int r) { return CompareWithSharedMemory(group, r); });
  for (int r = 0; r < GetParam(); ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}
TEST_P(TcpEveryWorldSize, ASmallBufferChangesNothing) {
  TcpGroup group(GetParam());
  group.options().buffer_bytes = 4096;
  group.options().spin_time = absl::ZeroDuration();
  RankProcesses ranks(GetParam(), [&](int r) { return CompareWithSharedMemory(group, r); });
  for (int r = 0; r < GetParam(); ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}
INSTANTIATE_TEST_SUITE_P(Comm, TcpEveryWorldSize, testing::Values(1, 2, 3, 4, 5));

// More than sockets buffer: every rank must receive while sending.
TEST(TcpCommunicator, ManyMebibytes) {
  TcpGroup group(3);
  RankProcesses ranks(3, [&](int r) {
    auto comm = group.Join(r);
    if (!comm.ok()) return 1;
    const int64_t count = (24 << 20) / 4 + 1;
    std::vector<float> data(count, 1.0f + r), all(3 * count);
    if (!(*comm)->AllGather(data.data(), count * 4, all.data()).ok()) return 2;
    if (!(*comm)->AllReduceSum(data.data(), count, DataType::kF32).ok()) return 3;
    for (int64_t i = 0; i < count; ++i) {
      if (data[i] != 6 || all[i] != 1 || all[i + count] != 2 || all[i + 2 * count] != 3) return 4;
    }
    return 0;
  });
  for (int r = 0; r < 3; ++r) EXPECT_EQ(ranks.Wait(r), 0) << "rank " << r;
}

TEST(TcpCommunicator, AGatherInPlace) {
  TcpGroup group(2);
  RankProcesses ranks(2, [&](int r) {
    auto comm = group.Join(r);
    int all[2] = {-1, -1};
    all[r] = r;
    if (!comm.ok() || !(*comm)->AllGather(&all[r], sizeof(int), all).ok()) return 1;
    return all[0] == 0 && all[1] == 1 ? 0 : 2;
  });
  EXPECT_TRUE(ranks.AllGood());
}

}  // namespace
}  // namespace somnus
