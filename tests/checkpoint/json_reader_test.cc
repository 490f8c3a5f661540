#include "checkpoint/json_reader.h"

#include <gtest/gtest.h>

namespace somnus {
namespace {

bool Valid(absl::string_view text) {
  JsonReader reader(text);
  return reader.Skip() && reader.AtEnd();
}

std::string StringOf(absl::string_view text) {
  JsonReader reader(text);
  std::string value;
  return reader.ReadString(&value) ? value : "error: " + reader.error();
}

TEST(JsonReader, AcceptsWhatTheGrammarAllows) {
  for (const char* text : {"{}", "[]", "null", " [1, -0, 0.5, 1e9, -2.5E-3] ",
                           R"({"a":{"b":[true,false,null]},"c":"d"})", "\"\xC3\xA9\"", "[[],{}]"}) {
    EXPECT_TRUE(Valid(text)) << text;
  }
}

TEST(JsonReader, RefusesEverythingElse) {
  for (const char* text : {"",          "{",        "[1,]",     "{\"a\":1,}",   "{\"a\"}",
                           "{a:1}",     "[1 2]",    "01",       "1.",           "1e",
                           "+1",        "nul",      "tru",      "\"abc",        "\"\\x\"",
                           "\"\\u12\"", "\"a\nb\"", "[1]]",     "NaN",          "Infinity",
                           "'a'",       "{}{}",     "\"\xFF\"", "\"\xC0\x80\"", "\"\xED\xA0\x80\"",
                           "{,}",       "[,1]"}) {
    EXPECT_FALSE(Valid(text)) << text;
  }
}

TEST(JsonReader, Unescapes) {
  EXPECT_EQ(StringOf(R"("a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(StringOf(R"("\u0041\u00e9\u20AC\ud83d\ude00")"), "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(StringOf(R"("\u0120t")"), "\xC4\xA0t");
  for (const char* text : {R"("\ud83d")", R"("\ude00\ud83d")", R"("\ud83dx")", R"("\ud83d\u0041")"}) {
    EXPECT_EQ(StringOf(text).substr(0, 22), "error: lone surrogate ") << text;
  }
}

TEST(JsonReader, ReadsIntegersExactly) {
  int64_t value = 0;
  JsonReader max("9223372036854775807");
  EXPECT_TRUE(max.ReadInt(&value));
  EXPECT_EQ(value, INT64_MAX);
  for (const char* text : {"9223372036854775808", "1.0", "1e3", "\"1\"", "-", "true"}) {
    JsonReader reader(text);
    EXPECT_FALSE(reader.ReadInt(&value)) << text;
  }
}

TEST(JsonReader, BoundsNesting) {
  EXPECT_TRUE(Valid(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(Valid(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(Valid(std::string(1000000, '[')));
}

TEST(JsonReader, SaysWhere) {
  JsonReader reader("[1, x]");
  EXPECT_FALSE(reader.Skip());
  EXPECT_EQ(reader.error(), "expected a value at byte 4");
}

}  // namespace
}  // namespace somnus
