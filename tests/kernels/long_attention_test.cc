// Attention over contexts of several sections, which threads share when there are fewer (sequence, KV head)
// pairs than threads: against softmax in double, and bit for bit the same however the work is cut.

#include "tests/kernels/attention_test_util.h"

namespace somnus {
namespace {

using namespace kernel_test;

class LongAttentionTest : public testing::TestWithParam<CpuIsa> {};
INSTANTIATE_TEST_SUITE_P(Isas, LongAttentionTest, testing::ValuesIn(IsasWithOwnKernels()), IsaName);

// A section has 512 tokens with blocks of 16, 504 of 24, 500 of 100, and one block of 600.
constexpr Shape kShapes[] = {{9, 3, 64, 16}, {2, 1, 40, 24}, {3, 3, 16, 100}, {4, 1, 32, 600}};
constexpr int64_t kLength = 1290;  // three sections

int64_t NumBlocks(const Shape& shape) { return 4 * (kLength / shape.block_size + 2); }

void FillUpTo(Runner& runner, Sequence& sequence, int64_t position) {
  while (sequence.done < position)
    runner.Step({&sequence}, {std::min<int64_t>(256, position - sequence.done)});
}

// The first tokens behind which a section ends, and the tokens around.
std::vector<int64_t> Boundaries(const Shape& shape) {
  const int64_t section =
      shape.block_size > 512 ? shape.block_size : 512 / shape.block_size * shape.block_size;
  return {section - 1, section, section + 1, 2 * section - 1, 2 * section, kLength - 1};
}

TEST_P(LongAttentionTest, EqualsSoftmaxInDouble) {
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << "types " << static_cast<int>(types.cache) << " and "
                                      << static_cast<int>(types.out) << ", block " << shape.block_size);
      Runner runner(GetParam(), 3, shape, types, NumBlocks(shape), 2048);
      Sequence s(shape, kLength, 1);
      for (const int64_t position : Boundaries(shape)) {
        FillUpTo(runner, s, position);
        runner.Step({&s}, {1});
        for (int64_t h = 0; h < shape.num_heads; ++h) {
          const std::vector<double> want =
              Reference(s, shape, types.cache, runner.kv_head_of_head()[h], h, position, runner.Scale());
          for (int64_t i = 0; i < shape.head_dim; ++i) {
            ASSERT_NEAR(runner.out().Get(0, h * shape.head_dim + i), want[i], Tolerance(types.out, want[i]))
                << "position " << position << ", head " << h << ", dim " << i;
          }
        }
      }
    }
  }
}

// A single thread adds the sections up itself; several threads share sections, also of chunks of queries of
// which some end in an earlier section, and other sequences move the cuts; without room for sums of sections
// nothing is shared.
TEST_P(LongAttentionTest, RowsDoNotDependOnThreadsChunksOrRoom) {
  for (const CacheTypes& types : CacheTypesOf(GetParam())) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(testing::Message() << "types " << static_cast<int>(types.cache) << " and "
                                      << static_cast<int>(types.out) << ", block " << shape.block_size);
      Runner alone(GetParam(), 1, shape, types, NumBlocks(shape));
      Sequence expected(shape, kLength, 1);
      std::vector<std::string> rows;
      while (expected.done < kLength) {
        // Around boundaries token by token.
        const int64_t done = expected.done;
        const bool near = done % 512 > 480 || done % 512 < 10;
        for (std::string& row : alone.Step({&expected}, {near ? 1 : std::min<int64_t>(31, kLength - done)}))
          rows.push_back(std::move(row));
      }
      for (const int threads : {2, 3, 9}) {
        for (const int64_t room : {0, 2048}) {
          if (room == 0 && threads > 2) continue;
          Runner runner(GetParam(), threads, shape, types, NumBlocks(shape), room);
          runner.ShuffleBlocks(static_cast<uint32_t>(threads));
          Sequence s(shape, kLength, 1), other(shape, kLength, 2), third(shape, kLength, 3);
          FillUpTo(runner, other, 700);
          std::mt19937 random(static_cast<uint32_t>(threads));
          while (s.done < kLength) {
            const int64_t begin = s.done;
            const int64_t count = std::min<int64_t>(kLength - begin, random() % 2 ? 1 + random() % 8 : 190);
            const bool with_others = random() % 2 && third.done < kLength / 2 && other.done < kLength;
            const auto got =
                with_others ? runner.Step({&other, &s, &third}, {1, count, 40}) : runner.Step({&s}, {count});
            for (int64_t t = 0; t < count; ++t) {
              ASSERT_EQ(got[t + (with_others ? 1 : 0)], rows[begin + t])
                  << threads << " threads, position " << begin + t << ", " << count << " rows";
            }
          }
        }
      }
    }
  }
}

// A value that is not a number stays in the rows that see the value.
TEST_P(LongAttentionTest, NanStaysBehindItsToken) {
  const Shape shape{3, 1, 32, 16};
  for (const CacheTypes& types : kCacheTypes) {
    Runner runner(GetParam(), 3, shape, types, NumBlocks(shape), 2048);
    Sequence s(shape, kLength, 1);
    for (int64_t c = 0; c < s.qkv.cols(); ++c) s.qkv.Set(600, c, NAN);
    FillUpTo(runner, s, 590);
    runner.Step({&s}, {20});
    for (int64_t t = 0; t < 20; ++t) {
      for (int64_t h = 0; h < 3; ++h)
        EXPECT_EQ(std::isnan(runner.out().Get(t, h * 32)), t >= 10) << "token " << 590 + t;
    }
    FillUpTo(runner, s, 1100);
    runner.Step({&s}, {1});
    EXPECT_TRUE(std::isnan(runner.out().Get(0, 0)));
  }
}

}  // namespace
}  // namespace somnus
