#include "checkpoint/head_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace somnus {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Stored(const HeadOrder& order, int64_t rows) {
  std::vector<int64_t> stored;
  for (int64_t row = 0; row < rows; ++row) stored.push_back(StoredRow(order, row));
  return stored;
}

TEST(HeadOrder, CanonicalRowsStay) { EXPECT_THAT(Stored({}, 4), ElementsAre(0, 1, 2, 3)); }

// Two heads of four rows, and two rows of values behind.
TEST(HeadOrder, NeighboursMoveToTheHalves) {
  EXPECT_THAT(Stored({4, 4, true, 8}, 10), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7, 8, 9));
}

// Six of eight rows rotate, row i with row i + 3: each half gets three rotating rows and one other row.
TEST(HeadOrder, PartialRotation) {
  EXPECT_THAT(Stored({8, 6, false, 8}, 8), ElementsAre(0, 1, 2, 6, 3, 4, 5, 7));
  EXPECT_THAT(Stored({8, 4, true, 8}, 8), ElementsAre(0, 2, 4, 5, 1, 3, 6, 7));
}

}  // namespace
}  // namespace somnus
