#include "text/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>

namespace somnus {
namespace {

std::vector<std::string> Matches(const std::string& pattern, const std::string& text, bool literal = false) {
  const auto regex = Regex::Compile(pattern, literal);
  EXPECT_TRUE(regex.ok()) << regex.status();
  std::vector<std::pair<size_t, size_t>> ranges;
  (*regex)->FindAll(text, &ranges);
  std::vector<std::string> out;
  for (const auto& [begin, end] : ranges) out.push_back(text.substr(begin, end - begin));
  return out;
}

using Strings = std::vector<std::string>;

TEST(RegexTest, SpaceAndWordByUnicodeProperty) {
  EXPECT_EQ(Matches("\\s", "\u180e\u0085\u3000\u200b"), (Strings{"\u0085", "\u3000"}));
  EXPECT_EQ(Matches("\\S+", "a\u180e b"), (Strings{"a\u180e", "b"}));
  EXPECT_EQ(Matches("[^\\s]+", "a\u00a0b"), (Strings{"a", "b"}));
  EXPECT_EQ(Matches("\\w+", "a\u0301_\u203f1-"), (Strings{"a\u0301_\u203f1"}));
}

TEST(RegexTest, RubyMeaningOfOptionsAndAnchors) {
  EXPECT_EQ(Matches("^a$", "a\na"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches("(?m:a.b)", "a\nb"), (Strings{"a\nb"}));
  EXPECT_EQ(Matches("a.b", "a\nb"), (Strings{}));
  EXPECT_EQ(Matches("(?i:'s)", "'S'\u017f"), (Strings{"'S", "'\u017f"}));
  EXPECT_EQ(Matches("\\h+", "xBEEFx"), (Strings{"BEEF"}));
}

TEST(RegexTest, EmptyMatchesMakeProgress) {
  EXPECT_EQ(Matches("x*", "axb"), (Strings{"", "x", ""}));
  EXPECT_EQ(Matches("", "\u00e9a"), (Strings{"", "", ""}));
}

TEST(RegexTest, LiteralsAreNotPatterns) { EXPECT_EQ(Matches("a.c", "abc a.c", true), (Strings{"a.c"})); }

TEST(RegexTest, HostilePatternGivesUp) {
  // Exponential backtracking: the limits end it, and the text stays unmatched.
  EXPECT_EQ(Matches("(a+)+$", std::string(64, 'a') + "!"), (Strings{}));
}

TEST(RegexTest, RefusesWhatHasNoTranslation) {
  for (const char* pattern : {"[a[b]]", "[a&&b]", "[a", "(", "a\\", "[[:alpha", "\xff"}) {
    EXPECT_FALSE(Regex::Compile(pattern, false).ok()) << pattern;
  }
}

}  // namespace
}  // namespace somnus
