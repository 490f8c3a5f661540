#include "tools/cli/text_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_split.h"

namespace somnus::cli {
namespace {

TEST(WrapTest, BreaksBetweenWordsOnly) {
  EXPECT_EQ(Wrap("state     awake and well", 40, 10), "state     awake and well");
  EXPECT_EQ(Wrap("state     awake and well", 20, 10), "state     awake and\n          well");
  EXPECT_EQ(Wrap("a longerthancolumns b", 6, 2), "a longerthancolumns\n  b");
  EXPECT_EQ(Wrap("  indented", 80, 2), "  indented");
  EXPECT_EQ(Wrap("", 10, 2), "");
}

TEST(WrapTest, CountsCharactersAndNoColours) {
  EXPECT_EQ(Wrap("\033[32mgr\u00fcn\033[0m ja", 7, 0), "\033[32mgr\u00fcn\033[0m ja");
  EXPECT_EQ(Wrap("\033[32mgr\u00fcn\033[0m ja", 6, 0), "\033[32mgr\u00fcn\033[0m\nja");
}

TEST(PrintableTest, ShowsControlsAndKeepsWords) {
  EXPECT_EQ(Printable("gr\u00fcn \u65e5\u672c \U0001f600"), "gr\u00fcn \u65e5\u672c \U0001f600");
  EXPECT_EQ(Printable("\033[2J\r\n\t\x7f"), "\\x1b[2J\\x0d\\x0a\\x09\\x7f");
  EXPECT_EQ(Printable(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "\\u009b2J")
      << "the one character that begins a sequence, too";
  EXPECT_EQ(Printable("\u202egpj.exe"), "\\u202egpj.exe");
  EXPECT_EQ(Printable("\u200e\u200f\u061c\ufeff"), "\\u200e\\u200f\\u061c\\ufeff");
  EXPECT_EQ(Printable("\U000e0041\U000e007f"), "\\ue0041\\ue007f");
  EXPECT_EQ(Printable("a\xff"
                      "b\xe6\x97"),
            "a\ufffd"
            "b\ufffd");
  EXPECT_EQ(Printable(Printable("\033")), Printable("\033"));
  EXPECT_EQ(PrintableLines("a\n\tb\033"), "a\n\tb\\x1b");
}

TEST(CutTest, CutsBetweenCharacters) {
  EXPECT_EQ(Cut("gr\u00fcn", 2), "gr");
  EXPECT_EQ(Cut("gr\u00fcn", 3), "gr\u00fc");
  EXPECT_EQ(Cut("gr\u00fcn", 4), "gr\u00fcn");
  EXPECT_EQ(Cut("gr\u00fcn", 0), "");
  EXPECT_EQ(Width("gr\u00fcn"), 4);
}

TextTable Two() {
  TextTable table({"model", "state", "memory", "waiting", ""}, 2);
  table.Add({"chat", "awake", "3.0 MiB", "12", "pinned"}, Style::kGreen);
  table.Add({"code", "asleep (level 2)", "0.0 MiB", "-", ""}, Style::kYellow);
  return table;
}

TEST(TextTableTest, IsATableWhereItFits) {
  const std::string table =
      "model  state              memory  waiting\n"
      "chat   awake             3.0 MiB       12  pinned\n"
      "code   asleep (level 2)  0.0 MiB        -\n";
  EXPECT_EQ(Two().Text(kAnyWidth), table);
  EXPECT_EQ(Two().Text(49), table);
}

TEST(TextTableTest, CountsCharactersAndNoBytes) {
  TextTable table({"model", "state", "memory"}, 2);
  table.Add({"gr\u00fcn", "awake", "1 B"});
  table.Add({"plain", "awake", "2 B"});
  EXPECT_EQ(table.Text(kAnyWidth),
            "model  state  memory\n"
            "gr\u00fcn   awake  1 B\n"
            "plain  awake  2 B\n");
}

TEST(TextTableTest, IsAListWhereItDoesNotFit) {
  EXPECT_EQ(Two().Text(48),
            "model chat: awake\n"
            "  memory 3.0 MiB, waiting 12, pinned\n"
            "model code: asleep (level 2)\n"
            "  memory 0.0 MiB\n");
  const std::string narrow = Two().Text(20);
  for (const absl::string_view line : absl::StrSplit(narrow, '\n')) EXPECT_LE(line.size(), 20u) << narrow;
}

}  // namespace
}  // namespace somnus::cli
