// Prompt lookup against a search of the whole sequence.

#include "coordinator/scheduler/ngram_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "coordinator/scheduler/draft_length.h"

namespace somnus {
namespace {

using Tokens = std::vector<int32_t>;

Tokens Draft(NgramLookup* lookup, const Tokens& tokens, int32_t most = 3) {
  Tokens draft = {-7};  // is no part of the result
  lookup->Propose(tokens, most, &draft);
  return draft;
}

Tokens Draft(const Tokens& tokens, int32_t most = 3, int32_t min = 2, int32_t max = 4) {
  NgramLookup lookup(min, max);
  return Draft(&lookup, tokens, most);
}

TEST(NgramLookupTest, ProposesWhatFollowedBefore) {
  EXPECT_EQ(Draft({1, 2, 3, 4, 5, 9, 1, 2}), (Tokens{3, 4, 5}));
  EXPECT_EQ(Draft({1, 2, 3, 4, 5, 9, 1, 2}, 1), Tokens{3});
  EXPECT_EQ(Draft({1, 2, 3, 4, 5, 9, 1, 2}, 5), (Tokens{3, 4, 5, 9, 1}));
}

TEST(NgramLookupTest, NeedsTheLeastNumberOfTokens) {
  EXPECT_EQ(Draft({}), Tokens());
  EXPECT_EQ(Draft({1}), Tokens());
  EXPECT_EQ(Draft({1, 2}), Tokens());
  EXPECT_EQ(Draft({1, 2, 3, 4}), Tokens());
  EXPECT_EQ(Draft({5, 2, 3, 9, 2}), Tokens());
  EXPECT_EQ(Draft({5, 2, 3, 9, 2}, 3, /*min=*/1), (Tokens{3, 9, 2}));
  EXPECT_EQ(Draft({1, 2, 3, 9, 1, 2}, 3, /*min=*/3), Tokens());
}

TEST(NgramLookupTest, TheLongestOccurrenceCountsElseTheLatest) {
  // "2 3" was followed by 7 lately; "1 2 3" by 4.
  EXPECT_EQ(Draft({1, 2, 3, 4, 2, 3, 7, 1, 2, 3}, 1), Tokens{4});
  EXPECT_EQ(Draft({1, 2, 3, 4, 2, 3, 7, 5, 2, 3}, 1), Tokens{7});
  // No more than the last two tokens count.
  EXPECT_EQ(Draft({1, 2, 3, 4, 2, 3, 7, 1, 2, 3}, 1, 2, /*max=*/2), Tokens{7});
}

TEST(NgramLookupTest, ALoopGoesOn) {
  EXPECT_EQ(Draft({8, 1, 2, 3, 1, 2}, 7), (Tokens{3, 1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(Draft({5, 5, 5}, 4), (Tokens{5, 5, 5, 5}));
}

// The longest of all occurrences with `min` tokens at least and `max` at most.
int32_t LongestOccurrence(const Tokens& tokens, int32_t min, int32_t max) {
  const auto size = static_cast<int32_t>(tokens.size());
  int32_t longest = 0;
  for (int32_t end = min; end < size; ++end) {
    int32_t length = 0;
    while (length < std::min(max, end) && tokens[end - 1 - length] == tokens[size - 1 - length]) ++length;
    longest = std::max(longest, length);
  }
  return longest >= min ? longest : 0;
}

// The lookup is asked after any number of new tokens, and finds the same as a lookup that sees all tokens for
// the first time.
TEST(NgramLookupTest, GrowsWithTheSequence) {
  int found = 0;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const int32_t min = 1 + static_cast<int32_t>(random() % 3),
                  max = min + static_cast<int32_t>(random() % 3);
    const uint32_t vocab =
        50 + random() % 100;  // n-grams seldom occur more often than candidates are looked at
    NgramLookup lookup(min, max);
    Tokens tokens;
    while (tokens.size() < 120) {
      for (uint32_t i = random() % 4; i > 0; --i) {
        const bool copies = tokens.size() > 20 && random() % 3 != 0;
        tokens.push_back(copies ? tokens[tokens.size() - 17] : static_cast<int32_t>(random() % vocab));
      }
      const int32_t longest = LongestOccurrence(tokens, min, max);
      const Tokens draft = Draft(&lookup, tokens, 2);
      ASSERT_EQ(draft.size(), longest > 0 ? 2u : 0u) << "seed " << seed << ", " << tokens.size() << " tokens";
      if (longest == 0) continue;
      ++found;
      // The draft followed an occurrence as long as any.
      Tokens wanted(tokens.end() - longest, tokens.end());
      wanted.insert(wanted.end(), draft.begin(), draft.end());
      Tokens with_draft = tokens;
      with_draft.insert(with_draft.end(), draft.begin(), draft.end());
      const auto at = std::search(with_draft.begin(), with_draft.end(), wanted.begin(), wanted.end());
      ASSERT_LT(at - with_draft.begin(), static_cast<std::ptrdiff_t>(tokens.size()) - longest)
          << "seed " << seed << ", " << tokens.size() << " tokens";
    }
  }
  EXPECT_GT(found, 5000);
}

TEST(NgramLookupTest, SeesTheWholeOfALongSequence) {
  Tokens tokens;
  for (int32_t i = 0; i < 5000; ++i) tokens.push_back(i);
  NgramLookup lookup(3, 5);
  EXPECT_EQ(Draft(&lookup, tokens), Tokens());
  for (const int32_t token : {10, 11, 12}) tokens.push_back(token);
  EXPECT_EQ(Draft(&lookup, tokens), (Tokens{13, 14, 15}));
  tokens.push_back(13);
  tokens.push_back(4000);
  EXPECT_EQ(Draft(&lookup, tokens), Tokens());
}

TEST(DraftLengthTest, BeginsAfterRightGuessesAndGrows) {
  DraftLength length(8);
  EXPECT_EQ(length.value(), 0);
  length.NoteGuess(true);
  length.NoteGuess(false);
  length.NoteGuess(true);
  EXPECT_EQ(length.value(), 0);
  length.NoteGuess(true);
  EXPECT_EQ(length.value(), 2);
  for (const int32_t longer : {4, 8, 8}) {
    length.NoteDraft(length.value(), length.value());
    EXPECT_EQ(length.value(), longer);
  }
  length.NoteDraft(8, 4);
  EXPECT_EQ(length.value(), 6);
  length.NoteDraft(6, 0);
  EXPECT_EQ(length.value(), 3);
  length.NoteGuess(false);
  EXPECT_EQ(length.value(), 0);
}

TEST(DraftLengthTest, EachTimeThatDraftsDoNotPayTheNextOnesComeLater) {
  DraftLength length(4);
  for (const int32_t needed : {2, 4, 8, 16, 32, 32}) {
    for (int32_t i = 0; i < needed; ++i) {
      EXPECT_EQ(length.value(), 0) << i << " of " << needed;
      length.NoteGuess(true);
    }
    EXPECT_EQ(length.value(), 2);
    length.NoteDraft(2, 0);
  }
  EXPECT_EQ(length.value(), 0);
}

TEST(DraftLengthTest, OneTokenIsALengthToo) {
  DraftLength length(1);
  length.NoteGuess(true);
  length.NoteGuess(true);
  EXPECT_EQ(length.value(), 1);
  length.NoteDraft(1, 1);
  EXPECT_EQ(length.value(), 1);
  length.NoteDraft(1, 0);
  EXPECT_EQ(length.value(), 0);
}

}  // namespace
}  // namespace somnus
