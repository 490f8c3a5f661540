// How far the draft model is in each sequence: guesses count where the sequence has gone on with the guessed
// tokens.

#include "worker/runner/draft_progress.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

using Tokens = std::vector<int32_t>;

TEST(DraftProgressTest, ASequenceBeginsWithWhatItsBlocksHave) {
  DraftProgress progress(2);
  EXPECT_TRUE(progress.IsNew(1, /*generation=*/1));
  progress.Begin(1, /*generation=*/1, /*num_tokens=*/3);
  EXPECT_FALSE(progress.IsNew(1, 1));
  EXPECT_EQ(progress.Reached(1, Tokens{1, 2, 3, 4, 5}, 5), 3);
  EXPECT_EQ(progress.Reached(1, Tokens{1, 2, 3, 4, 5}, 2), 2);
  EXPECT_EQ(progress.noted(1), 3);
  progress.Set(1, 5, {});
  EXPECT_EQ(progress.Reached(1, Tokens{1, 2, 3, 4, 5, 6, 7}, 7), 5);
  EXPECT_EQ(progress.noted(1), 5);
  EXPECT_TRUE(progress.IsNew(1, 2));
  progress.Begin(1, 2, 7);
  EXPECT_EQ(progress.Reached(1, Tokens{1, 2, 3, 4, 5, 6, 7}, 7), 7) << "another one";
  progress.Clear();
  EXPECT_TRUE(progress.IsNew(1, 2));
}

TEST(DraftProgressTest, GuessesCountAsFarAsTheyAreRight) {
  DraftProgress progress(1);
  progress.Begin(0, 1, 0);
  progress.Set(0, 2, Tokens{30, 40, 50});
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, 30, 40, 41}, 5), 4);
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, 30, 40, 50}, 5), 4) << "they are gone";
  progress.Set(0, 2, Tokens{30, 40, 50});
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, 30}, 3), 3);
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, 30, 40, 50, 60}, 6), 5) << "they count later, too";
}

// The block of the guesses was given back, and a new block is in the same place.
TEST(DraftProgressTest, NothingIsThereOfABlockThatIsNew) {
  const Tokens tokens = {10, 20, 30, 40, 50, 60};
  DraftProgress progress(1);
  progress.Begin(0, 1, 0);
  progress.Set(0, 2, Tokens{30, 40, 50});
  progress.CutAt(0, 4);
  EXPECT_EQ(progress.Reached(0, tokens, 6), 4);
  progress.CutAt(0, 3);
  EXPECT_EQ(progress.Reached(0, tokens, 6), 3);
  progress.Set(0, 5, {});
  progress.CutAt(0, 4);
  EXPECT_EQ(progress.noted(0), 4);
  EXPECT_EQ(progress.Reached(0, tokens, 6), 4);
  progress.CutAt(0, 8);
  EXPECT_EQ(progress.Reached(0, tokens, 6), 4);
}

TEST(DraftProgressTest, AnUnknownTokenDecidesNothing) {
  DraftProgress progress(1);
  progress.Begin(0, 1, 0);
  progress.Set(0, 1, Tokens{20, 30});
  EXPECT_EQ(progress.Reached(0, Tokens{10, -1, -1}, 3), 1);
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, -1}, 3), 2);
  EXPECT_EQ(progress.Reached(0, Tokens{10, 20, 30}, 3), 3);
}

}  // namespace
}  // namespace somnus
