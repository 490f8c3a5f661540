// Collectives over peer memory, whose ranks are threads of this process: bitwise the rank-order result, for
// any size, group and schedule; replayed from graphs; and an end to every wait when a rank stays away.

#include "kernels/cuda/peer/all_reduce.h"

#include "absl/time/clock.h"
#include "kernels/cuda/peer/all_reduce_plan.h"
#include "tests/cuda/peer_test_util.h"

namespace somnus::cuda_test {
namespace {

// ---- Sums

// Sizes around vectors, tails, blocks and pieces (of a buffer of 8 KiB); both ways; aligned or not.
class EveryWorldSize : public testing::TestWithParam<int> {};

TEST_P(EveryWorldSize, SumsAreBitwiseInRankOrder) {
  const int world_size = GetParam();
  for (const int64_t one_shot_bytes : {INT64_MAX, int64_t{0}}) {
    PeerOptions options{.buffer_bytes = 8192, .one_shot_bytes = one_shot_bytes};
    Group group(world_size, 7 + world_size, options);
    SKIP_WITHOUT_GPU(group);
    int call = 0;
    for (const DataType type : kTypes) {
      for (const int64_t count : {1, 7, 8, 65, 1000, 2048, 4099, 9001}) {
        const int64_t offset = count % 8 == 1 ? 1 : 0;
        RankArrays data(type, world_size, count, offset);
        data.FillInputs(++call);
        group.Run([&](int r, Rank& rank) { rank.peers->AllReduceSum(data.data(r), count, type); });
        data.ExpectSums(call, absl::StrCat("type ", static_cast<int>(type), ", ", count,
                                           " elements, one-shot to ", one_shot_bytes));
      }
    }
  }
}

// The place of a rank's own arrays must not change how the rank cuts the arrays: other ranks' arrays lie
// otherwise.
TEST_P(EveryWorldSize, RanksNeedNotBeAlignedAlike) {
  const int world_size = GetParam();
  for (const int64_t one_shot_bytes : {INT64_MAX, int64_t{0}}) {
    PeerOptions options{.one_shot_bytes = one_shot_bytes};
    Group group(world_size, 29, options);
    SKIP_WITHOUT_GPU(group);
    constexpr int64_t kCount = 9001, kBytes = kCount * 2;
    RankArrays aligned(DataType::kBF16, world_size, kCount), shifted(DataType::kBF16, world_size, kCount, 1);
    std::vector<std::unique_ptr<DeviceBuffer>> all;
    for (int r = 0; r < world_size; ++r) all.push_back(std::make_unique<DeviceBuffer>(kBytes * world_size));
    aligned.FillInputs(1);
    shifted.FillInputs(1);
    const auto data = [&](int r) { return r % 2 == 0 ? aligned.data(r) : shifted.data(r); };
    group.Run([&](int r, Rank& rank) {
      rank.peers->AllReduceSum(data(r), kCount, DataType::kBF16);
      rank.peers->AllGather(data(r), kBytes, all[r]->device<void>());
    });
    const std::vector<uint32_t> sum = RankOrderSum(DataType::kBF16, 1, world_size, kCount);
    for (int r = 0; r < world_size; ++r) {
      EXPECT_TRUE((r % 2 == 0 ? aligned : shifted).Bits(r) == sum) << "rank " << r;
      for (int from = 0; from < world_size; ++from) {
        EXPECT_TRUE(all[r]->Bytes(from * kBytes, kBytes) == aligned.Bytes(0)) << "gather, rank " << r;
      }
    }
  }
}

TEST_P(EveryWorldSize, GathersAnyBytes) {
  const int world_size = GetParam();
  PeerOptions options{.buffer_bytes = 4096};
  Group group(world_size, 3 + world_size, options);
  SKIP_WITHOUT_GPU(group);
  for (const int64_t bytes : {1, 3, 4, 16, 100, 1024, 4096, 4100, 9000, 9001}) {
    std::vector<std::unique_ptr<DeviceBuffer>> in, out;
    for (int r = 0; r < world_size; ++r) {
      in.push_back(std::make_unique<DeviceBuffer>(bytes));
      out.push_back(std::make_unique<DeviceBuffer>(bytes * world_size));
      std::string values(static_cast<size_t>(bytes), '\0');
      for (int64_t i = 0; i < bytes; ++i) values[i] = static_cast<char>(i * 7 + r * 31);
      in[r]->Write(0, values.data(), bytes);
    }
    group.Run([&](int r, Rank& rank) {
      rank.peers->AllGather(in[r]->device<void>(), bytes, out[r]->device<void>());
    });
    for (int r = 0; r < world_size; ++r) {
      for (int from = 0; from < world_size; ++from) {
        EXPECT_TRUE(out[r]->Bytes(from * bytes, bytes) == in[from]->Bytes())
            << bytes << " bytes of rank " << from << " at rank " << r;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(AllReduce, EveryWorldSize, testing::Values(2, 3, 4, 5, 8));

// Both buffers used again and again, by calls of all kinds and sizes, with nobody waiting in between.
TEST(AllReduceTest, ManyCallsOfAllKindsUnderManySchedules) {
  for (const uint64_t seed : {1, 2, 3}) {
    const int world_size = 2 + static_cast<int>(seed);
    PeerOptions options{.buffer_bytes = 4096, .one_shot_bytes = 1000};
    Group group(world_size, seed, options);
    SKIP_WITHOUT_GPU(group);
    constexpr int kCalls = 60;
    std::mt19937 random(static_cast<uint32_t>(seed));
    std::vector<std::unique_ptr<RankArrays>> sums, gathers;
    std::vector<int64_t> counts;
    for (int call = 0; call < kCalls; ++call) {
      counts.push_back(1 + random() % 900);
      sums.push_back(std::make_unique<RankArrays>(kTypes[call % 3], world_size, counts[call]));
      sums[call]->FillInputs(call);
      gathers.push_back(
          std::make_unique<RankArrays>(kTypes[call % 3], world_size, counts[call] * world_size));
    }
    group.Run([&](int r, Rank& rank) {
      for (int call = 0; call < kCalls; ++call) {
        const DataType type = kTypes[call % 3];
        if (call % 4 == 1) {
          rank.peers->AllGather(sums[call]->data(r), counts[call] * SizeOf(type), gathers[call]->data(r));
        }
        rank.peers->AllReduceSum(sums[call]->data(r), counts[call], type);
      }
    });
    for (int call = 0; call < kCalls; ++call) {
      sums[call]->ExpectSums(call, absl::StrCat("call ", call, ", seed ", seed));
      for (int r = 0; call % 4 == 1 && r < world_size; ++r) {
        std::vector<uint32_t> all;
        for (int from = 0; from < world_size; ++from) {
          const std::vector<uint32_t> part = Input(kTypes[call % 3], call, from, counts[call]);
          all.insert(all.end(), part.begin(), part.end());
        }
        EXPECT_TRUE(gathers[call]->Bits(r) == all) << "gather of call " << call << ", rank " << r;
      }
    }
  }
}

// The count of calls lives on the device: replays go on from that count, and so do calls outside of graphs in
// between.
TEST(AllReduceTest, GraphsAreReplayed) {
  constexpr int kWorldSize = 3;
  constexpr int64_t kCount = 777;
  PeerOptions options{.buffer_bytes = 4096, .one_shot_bytes = 2000};
  Group group(kWorldSize, 11, options);
  SKIP_WITHOUT_GPU(group);
  RankArrays one_shot(DataType::kBF16, kWorldSize, kCount), two_shot(DataType::kF32, kWorldSize, kCount);
  RankArrays outside(DataType::kF16, kWorldSize, kCount);
  std::vector<std::unique_ptr<DeviceGraph>> graphs;
  for (int r = 0; r < kWorldSize; ++r) {
    Rank& rank = group.rank(r);
    ASSERT_TRUE(rank.device->BeginCapture().ok());
    rank.peers->AllReduceSum(one_shot.data(r), kCount, DataType::kBF16);
    rank.peers->AllReduceSum(two_shot.data(r), kCount, DataType::kF32);
    rank.peers->AllReduceSum(one_shot.data(r), 8, DataType::kBF16);  // an odd number: parities alternate
    auto graph = rank.device->EndCapture();
    ASSERT_TRUE(graph.ok()) << graph.status();
    graphs.push_back(*std::move(graph));
  }
  for (int replay = 0; replay < 6; ++replay) {
    one_shot.FillInputs(replay);
    two_shot.FillInputs(100 + replay);
    outside.FillInputs(200 + replay);
    group.Run([&](int r, Rank& rank) {
      if (replay % 2 == 1) rank.peers->AllReduceSum(outside.data(r), kCount, DataType::kF16);
      graphs[r]->Launch();
    });
    two_shot.ExpectSums(100 + replay, "two-shot");
    if (replay % 2 == 1) outside.ExpectSums(200 + replay, "outside of the graph");
    std::vector<uint32_t> sum = RankOrderSum(DataType::kBF16, replay, kWorldSize, kCount);
    for (int i = 0; i < 8; ++i) {  // summed once more
      const float x = ValueOf(DataType::kBF16, sum[i]);
      sum[i] = BitsOf(DataType::kBF16, x + x + x);
    }
    for (int r = 0; r < kWorldSize; ++r) EXPECT_TRUE(one_shot.Bits(r) == sum) << "replay " << replay;
  }
}

// ---- Fused with add + RMSNorm

struct NormCase {
  int64_t rows, cols;
  DataType sum, act;
};

void RunNorm(int world_size, const NormCase& c) {
  Group group(world_size, c.rows + c.cols);
  SKIP_WITHOUT_GPU(group);
  const int64_t count = c.rows * c.cols;
  RankArrays delta(c.sum, world_size, count), residual(DataType::kF32, world_size, count);
  RankArrays out(c.act, world_size, count), weight(DataType::kF32, world_size, c.cols);
  delta.FillInputs(1);
  const std::vector<uint32_t> before = Input(DataType::kF32, 2, 0, count);
  const std::vector<uint32_t> weights = Input(DataType::kF32, 3, 0, c.cols);
  for (int r = 0; r < world_size; ++r) residual.Fill(r, before), weight.Fill(r, weights);
  const auto view = [&](RankArrays& array, DataType type, int r) {
    return TensorView{array.data(r), type, c.rows, c.cols, c.cols};
  };
  group.Run([&](int r, Rank& rank) {
    EXPECT_TRUE(rank.peers->AllReduceAddRmsNorm(view(residual, DataType::kF32, r), view(delta, c.sum, r),
                                                static_cast<float*>(weight.data(r)), 1e-5,
                                                view(out, c.act, r)));
  });

  // The residual: bitwise the result of the rounded sum and the add.
  std::vector<uint32_t> after = RankOrderSum(c.sum, 1, world_size, count);
  for (int64_t i = 0; i < count; ++i) {
    after[i] = std::bit_cast<uint32_t>(std::bit_cast<float>(before[i]) + ValueOf(c.sum, after[i]));
  }
  for (int r = 0; r < world_size; ++r) {
    EXPECT_TRUE(residual.Bits(r) == after) << "residual of rank " << r;
    EXPECT_TRUE(out.Bits(r) == out.Bits(0)) << "out of rank " << r;
  }
  // Bitwise the result of the two separate calls.
  RankArrays delta2(c.sum, world_size, count), residual2(DataType::kF32, world_size, count);
  RankArrays out2(c.act, world_size, count);
  delta2.FillInputs(1);
  for (int r = 0; r < world_size; ++r) residual2.Fill(r, before);
  group.Run([&](int r, Rank& rank) {
    rank.peers->AllReduceSum(delta2.data(r), count, c.sum);
    AddRmsNorm(*rank.device, view(residual2, DataType::kF32, r), view(delta2, c.sum, r),
               static_cast<float*>(weight.data(r)), 1e-5, view(out2, c.act, r));
  });
  EXPECT_TRUE(residual2.Bits(0) == after);
  EXPECT_TRUE(out2.Bits(0) == out.Bits(0)) << "fused or not makes a difference";
  // The norm: f32 sums of `cols` squares (relative error far below 1e-5), then one rounding to the type.
  const double tolerance = 1e-5 + kernel_test::Epsilon(c.act);
  const std::vector<uint32_t> got = out.Bits(0);
  for (int64_t row = 0; row < c.rows; ++row) {
    double squares = 0;
    for (int64_t i = row * c.cols; i < (row + 1) * c.cols; ++i)
      squares += std::pow(std::bit_cast<float>(after[i]), 2.0);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(c.cols) + 1e-5);
    for (int64_t col = 0; col < c.cols; ++col) {
      const double want =
          std::bit_cast<float>(after[row * c.cols + col]) * scale * std::bit_cast<float>(weights[col]);
      const double value = ValueOf(c.act, got[row * c.cols + col]);
      // f16's subnormals are a grid of 2^-24.
      ASSERT_NEAR(value, want, std::abs(want) * tolerance + 6e-8) << "row " << row << ", column " << col;
    }
  }
}

TEST(AllReduceTest, FusedWithAddAndRmsNorm) {
  for (const int world_size : {2, 5}) {
    for (const NormCase& c : {NormCase{1, 64, DataType::kBF16, DataType::kBF16},
                              NormCase{3, 1000, DataType::kF16, DataType::kF16},
                              NormCase{2, 2048, DataType::kF32, DataType::kF32},
                              NormCase{40, 72, DataType::kF32, DataType::kBF16},    // more rows than blocks
                              NormCase{40, 520, DataType::kBF16, DataType::kBF16},  // of several warps
                              NormCase{5, 75, DataType::kF32, DataType::kF16},      // no vectors
                              NormCase{4, 33, DataType::kBF16, DataType::kBF16}}) {
      RunNorm(world_size, c);
    }
  }
}

TEST(AllReduceTest, FusesOnlyWhatIsWorthIt) {
  PeerOptions options{.buffer_bytes = 4096, .one_shot_bytes = 2048};
  Group group(2, 1, options);
  SKIP_WITHOUT_GPU(group);
  DeviceBuffer memory(64 << 10);
  const auto try_rows = [&](int64_t rows) {
    const TensorView delta = {memory.device<char>(), DataType::kBF16, rows, 64, 64};
    const TensorView residual = {memory.device<char>() + 16384, DataType::kF32, rows, 64, 64};
    const TensorView out = {memory.device<char>() + 49152, DataType::kBF16, rows, 64, 64};
    return group.rank(0).peers->AllReduceAddRmsNorm(residual, delta, memory.device<float>(), 1e-5, out);
  };
  EXPECT_FALSE(try_rows(0));
  EXPECT_FALSE(try_rows(17));  // 2176 bytes
}

// ---- Failure

TEST(AllReduceTest, StopEndsTheWaitForARankThatStaysAway) {
  Group group(3, 5);
  SKIP_WITHOUT_GPU(group);
  RankArrays data(DataType::kF32, 3, 100);
  data.FillInputs(1);
  for (const int r : {0, 1}) {
    for (int i = 0; i < 3; ++i) group.rank(r).peers->AllReduceSum(data.data(r), 100, DataType::kF32);
  }
  std::thread stopper([&] {
    absl::SleepFor(absl::Milliseconds(100));
    group.rank(0).peers->Stop();
    group.rank(1).peers->Stop();
    group.rank(1).peers->Stop();
  });
  std::thread other([&] { EXPECT_TRUE(group.rank(1).device->Synchronize().ok()); });
  EXPECT_TRUE(group.rank(0).device->Synchronize().ok());
  other.join();
  stopper.join();
  EXPECT_TRUE(absl::IsAborted(group.rank(0).peers->status()));
  EXPECT_TRUE(absl::IsAborted(group.rank(1).peers->status()));
  EXPECT_TRUE(group.rank(2).peers->status().ok());
  EXPECT_TRUE(data.Bits(0) == Input(DataType::kF32, 1, 0, 100)) << "outputs are left as they were";
}

TEST(AllReduceTest, TimeoutNamesTheRank) {
  PeerOptions options{.timeout = absl::Milliseconds(50)};
  Group group(2, 5, options);
  SKIP_WITHOUT_GPU(group);
  RankArrays data(DataType::kF32, 2, 100);
  data.FillInputs(1);
  group.rank(0).peers->AllReduceSum(data.data(0), 100, DataType::kF32);
  EXPECT_TRUE(group.rank(0).device->Synchronize().ok());
  const absl::Status status = group.rank(0).peers->status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
  group.rank(0).peers->Stop();
  EXPECT_TRUE(absl::IsDeadlineExceeded(group.rank(0).peers->status())) << "the first cause stays";
}

TEST(AllReduceTest, BadGroupsAreNamed) {
  std::unique_ptr<Device> device = MakeCudaDevice();
  SOMNUS_SKIP_WITHOUT_GPU(device);
  const auto make = [&](PeerOptions options) {
    return cuda::MakePeerCollectives(cuda::AsCuda(*device), options);
  };
  EXPECT_TRUE(absl::IsInvalidArgument(make({.world_size = 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(make({.world_size = kMaxPeers + 1}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(make({.rank = 2, .world_size = 2}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(make({.buffer_bytes = 100}).status()));
  auto small = make({.rank = 0, .world_size = 2, .buffer_bytes = 1024});
  auto large = make({.rank = 1, .world_size = 2, .buffer_bytes = 2048});
  ASSERT_TRUE(small.ok() && large.ok());
  const PeerHandle handles[] = {(*small)->handle(), (*large)->handle()};
  EXPECT_TRUE(absl::IsInvalidArgument((*small)->Connect({handles, 1})));
  const absl::Status status = (*small)->Connect(handles);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message().find("memory of rank 1"), 0u) << status;
  PeerHandle nowhere = (*small)->handle();
  nowhere.process ^= 1;
  std::memset(nowhere.ipc, 0, sizeof(nowhere.ipc));
  const PeerHandle unreachable[] = {(*small)->handle(), nowhere};
  EXPECT_TRUE(absl::IsUnavailable((*small)->Connect(unreachable)));
}

}  // namespace
}  // namespace somnus::cuda_test
