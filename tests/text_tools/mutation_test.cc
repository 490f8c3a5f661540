// A small fuzzer with a fixed seed, which runs with the tests.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/text_tools/fuzz_entries.h"
#include "tests/text_tools/recorded_turns.h"

namespace somnus {
namespace {

// Every marker of every format, and the characters of JSON, Python and the tags.
std::vector<std::string> Words() {
  std::vector<std::string> words = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    "\"",
                                    "\\",
                                    "'",
                                    "(",
                                    ")",
                                    ",",
                                    ":",
                                    "=",
                                    " ",
                                    "\n",
                                    "name",
                                    "a",
                                    "\"name\": \"f\"",
                                    "\"arguments\": {",
                                    "\xe2\x96\x81",
                                    "\xff",
                                    "1",
                                    "None",
                                    ">",
                                    "f(a=1)",
                                    "<|start|>",
                                    "<|message|>",
                                    "<|end|>",
                                    "<|call|>",
                                    "<|channel|>",
                                    "to="};
  for (const ToolFormat& format : ToolFormats()) {
    for (const absl::string_view text :
         {format.section_begin, format.section_end, format.header.type_end, format.header.name_end,
          format.header.id_mark, format.tags.key_begin, format.tags.key_end, format.tags.value_begin,
          format.tags.value_end, format.quote}) {
      if (!text.empty()) words.emplace_back(text);
    }
    for (const absl::string_view text : format.call_begin) words.emplace_back(text);
    for (const absl::string_view text : format.call_end) words.emplace_back(text);
  }
  for (const ReasoningFormat& format : ReasoningFormats()) {
    words.emplace_back(format.begin);
    words.emplace_back(format.end);
  }
  return words;
}

TEST(MutationTest, TurnParser) {
  std::mt19937 random(14);
  const auto below = [&random](size_t n) { return n == 0 ? 0 : random() % n; };
  const std::vector<std::string> words = Words();
  for (int i = 0; i < 4000; ++i) {
    const size_t which = below(RecordedTurns().size());
    std::string text = RecordedTurns()[which].text;
    for (size_t n = 1 + below(6); n > 0; --n) {
      const size_t at = below(text.size() + 1);
      switch (below(5)) {
        case 0:
          text.erase(at, below(12));
          break;
        case 1:
        case 2:
          text.insert(at, words[below(words.size())]);
          break;
        case 3:
          text.insert(at, text.substr(below(text.size() + 1), below(60)));
          break;
        default:
          if (at < text.size()) text[at] = static_cast<char>(below(256));
      }
    }
    const std::string head = {static_cast<char>(below(8) == 0 ? below(256) : which),
                              static_cast<char>(below(256))};
    FuzzTurnParser(head + text);
  }
}

}  // namespace
}  // namespace somnus
